#!/bin/sh
# The join authority (grantor) lets a key (grantee) join its runs.
set -eu
if [ $# -ne 3 ] || [ -z "$3" ]; then
    echo "usage: sh scripts/join-authorization-create.sh CLUSTER GRANTOR_KEYPAIR_FILE GRANTEE_PUBKEY" >&2
    echo "example: sh scripts/join-authorization-create.sh devnet grantor.json \$GRANTEE_PUBKEY" >&2
    exit 2
fi
. "$(dirname -- "$0")/cluster.sh"
rpc=$(cluster_rpc "$1")
exec "$aftermath" join-authorization-create --rpc "$rpc" --wallet-private-key-path "$2" --authorizer "$3"
