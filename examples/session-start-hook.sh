#!/bin/sh
# A session-start hook for a coding agent: starts a gateway for your MCP servers and exports its address to the
# agent's shells, so that `hutch exec` and `hutch tools` answer at once. The servers are those of
# ~/.toolscript.json and, once you have run `hutch trust` there, of this project's .toolscript.json.
#
# Agents with such hooks name a file that every later shell reads: give it as the argument, or in
# CLAUDE_ENV_FILE. Without one, the export is printed:  eval "$(examples/session-start-hook.sh)"
set -eu
command -v hutch >/dev/null || PATH=$(cd "$(dirname "$0")/.." && pwd)/.venv/bin:$PATH
command -v hutch >/dev/null || { echo "hutch is not on the PATH: run make install in the checkout, or pip install it" >&2; exit 1; }

file=${1:-${CLAUDE_ENV_FILE:-}}
log=${XDG_STATE_HOME:-$HOME/.local/state}/hutch-gateway.log

is_running() { # also if one of its servers cannot be reached
  [ -n "$(hutch gateway status --json 2>/dev/null)" ]
}

if ! is_running; then
  mkdir -p "$(dirname "$log")"
  # It keeps running after the hook and the session: the next session uses it.
  nohup hutch gateway start --project . </dev/null >"$log" 2>&1 &
  tries=100
  until is_running || [ "$tries" -eq 0 ]; do
    kill -0 $! 2>/dev/null || { cat "$log" >&2; exit 1; }
    tries=$((tries - 1))
    sleep 0.1
  done
fi

if [ -n "$file" ]; then
  hutch gateway env >>"$file"
else
  hutch gateway env
fi
