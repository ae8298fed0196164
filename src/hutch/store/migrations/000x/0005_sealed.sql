-- Inputs, results and events of flow runs are encrypted. Fields used in queries get their own columns.

-- Type of an event, or state of a finished step.
ALTER TABLE flow_journal ADD COLUMN kind TEXT NOT NULL DEFAULT '';
-- Step whose approval an event requests or settles.
ALTER TABLE flow_journal ADD COLUMN subject TEXT;

-- The index has all columns that are needed for counting, because reading the rows takes longer: they may be long.
DROP INDEX flow_journal_steps;
CREATE INDEX flow_journal_steps ON flow_journal (run_id, number, step, kind) WHERE step IS NOT NULL;
CREATE INDEX flow_journal_subjects ON flow_journal (run_id, subject, number) WHERE subject IS NOT NULL;
CREATE INDEX flow_journal_approvals ON flow_journal (run_id, number) WHERE kind = 'approval';

-- Existing rows are encrypted later, because that needs the master key: the first process that uses these tables
-- encrypts them and removes this mark.
INSERT INTO meta (key, value)
SELECT 'journal.clear', 'yes' WHERE EXISTS (SELECT 1 FROM flow_runs) OR EXISTS (SELECT 1 FROM flows);
