-- What runs of flows are given, give and tell is sealed. What is asked of it stands beside it now.

-- Of an event its type, of a result how the step ended.
ALTER TABLE flow_journal ADD COLUMN kind TEXT NOT NULL DEFAULT '';
-- The step that somebody is asked about by an event, or not any more.
ALTER TABLE flow_journal ADD COLUMN subject TEXT;

-- With all that counting takes: a row may be long.
DROP INDEX flow_journal_steps;
CREATE INDEX flow_journal_steps ON flow_journal (run_id, number, step, kind) WHERE step IS NOT NULL;
CREATE INDEX flow_journal_subjects ON flow_journal (run_id, subject, number) WHERE subject IS NOT NULL;
CREATE INDEX flow_journal_approvals ON flow_journal (run_id, number) WHERE kind = 'approval';

-- Sealing takes the master key: whoever first needs what is here does it, and takes the mark away.
INSERT INTO meta (key, value)
SELECT 'journal.clear', 'yes' WHERE EXISTS (SELECT 1 FROM flow_runs) OR EXISTS (SELECT 1 FROM flows);
