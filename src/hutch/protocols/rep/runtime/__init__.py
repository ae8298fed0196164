"""REP runtime: schedules and runs the steps of a flow."""
