#!/bin/sh
# From a new user to a first run: an API that requires a token, and a wrapper that never sees it.
# Everything is in a temporary folder:  examples/abilities/first-run.sh [PORT]
set -eu
cd "$(dirname "$0")"
command -v hutch >/dev/null || PATH=$(cd ../.. && pwd)/.venv/bin:$PATH
command -v hutch >/dev/null || { echo "hutch is not on the PATH: run make install in the checkout, or pip install it" >&2; exit 1; }

port=${1:-8099}
HUTCH_HOME=$(mktemp -d)
export HUTCH_HOME
python3 api.py "$port" &
trap 'kill $!; rm -r "$HUTCH_HOME"' EXIT

run() {
  hutch ability run --user bo get_profile --params '{"username": "ada"}' --egress-allow "127.0.0.1:$port" "$@"
}

hutch user add bo
echo 'Bearer tok-0123456789abcdef' | hutch credential set --user bo 127.0.0.1::Authorization
sed "s/8099/$port/" profile.js >"$HUTCH_HOME/profile.js"
hutch ability add --user bo profile.json --code "$HUTCH_HOME/profile.js"

run                                        # the API gets the token, the caller does not
run --transform '(data) => data.followers_count'

echo 'Bearer tok-that-is-not-known' | hutch credential set --user bo 127.0.0.1::Authorization
run || hutch credential list --user bo     # rejected: the credential is marked as expired
