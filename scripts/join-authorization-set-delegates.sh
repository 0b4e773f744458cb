#!/bin/sh
# An authorized key (grantee) sets the keys that may join on its behalf, in place of those it named before.
set -eu
if [ $# -lt 3 ] || [ -f "$2" ]; then
    [ $# -lt 3 ] || echo "error: $2 is a file, and the second word is the grantor's public key; is its variable set?" >&2
    echo "usage: sh scripts/join-authorization-set-delegates.sh CLUSTER GRANTOR_PUBKEY GRANTEE_KEYPAIR_FILE [DELEGATE_KEYPAIR_FILE...]" >&2
    echo "example: sh scripts/join-authorization-set-delegates.sh devnet \$GRANTOR_PUBKEY grantee.json delegate*.json" >&2
    exit 2
fi
. "$(dirname -- "$0")/cluster.sh"
rpc=$(cluster_rpc "$1")
grantor=$2
grantee=$3
shift 3
count=$#
while [ "$count" -gt 0 ]; do
    delegate=$1
    shift
    set -- "$@" --delegates-added "$delegate"
    count=$((count - 1))
done
exec "$aftermath" join-authorization-delegate --rpc "$rpc" --wallet-private-key-path "$grantee" \
    --join-authority "$grantor" --delegates-clear "$@"
