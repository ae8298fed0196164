-- The pages of a suspended run show what its pending calls wait for.

-- Text of the `Suspend` that the tool raised. Encrypted like `question`.
ALTER TABLE pending_calls ADD COLUMN message TEXT;
