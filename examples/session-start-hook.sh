#!/bin/sh
# A session-start hook for a coding agent: has a gateway run for this project's MCP servers, and tells the
# agent's shells where it is, so that `hutch exec` and `hutch tools` answer at once.
#
# Agents that have such hooks name a file whose lines every later shell reads: give it as the argument, or in
# CLAUDE_ENV_FILE. Without one, what is to be evaluated is printed:  eval "$(examples/session-start-hook.sh)"
set -eu
command -v hutch >/dev/null || PATH=$(cd "$(dirname "$0")/.." && pwd)/.venv/bin:$PATH
command -v hutch >/dev/null || { echo "hutch is not on the PATH: run make install in the checkout, or pip install it" >&2; exit 1; }

file=${1:-${CLAUDE_ENV_FILE:-}}
log=${XDG_STATE_HOME:-$HOME/.local/state}/hutch-gateway.log

runs() { # also when one of its servers cannot be reached
  [ -n "$(hutch gateway status --json 2>/dev/null)" ]
}

if ! runs; then
  mkdir -p "$(dirname "$log")"
  # It stays when the hook is done, and when the session is: the next one finds it.
  nohup hutch gateway start </dev/null >"$log" 2>&1 &
  tries=100
  until runs || [ "$tries" -eq 0 ]; do
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
