#!/bin/bash
# What the server's container runs: nginx as root, which needs port 443, and the SuperLink as cosdefense.
# If one of them ends, the other ends, too, and the container is restarted as a whole.
set -euo pipefail
umask 077
chown cosdefense: /var/lib/cosdefense
install -o cosdefense -m 400 /etc/cosdefense/server.key /run/superlink.key
nginx -g "daemon off;" &
setpriv --reuid=cosdefense --regid=cosdefense --clear-groups --no-new-privs --bounding-set=-all \
    flower-superlink --host 127.0.0.1 --port 8000 \
    --ssl-ca-certfile /etc/cosdefense/ca.crt --ssl-certfile /etc/cosdefense/server.crt \
    --ssl-keyfile /run/superlink.key \
    --enable-supernode-auth --database state.db --disable-runtime-dependency-installation &
trap 'kill $(jobs -p)' TERM INT
wait -n || true
kill $(jobs -p) 2>/dev/null || true
wait
