-- The tool of each pending call, so that its result can be checked without reading the run's state. NULL for calls of
-- runs that were suspended by earlier versions.

ALTER TABLE pending_calls ADD COLUMN provider TEXT;
ALTER TABLE pending_calls ADD COLUMN tool TEXT;
