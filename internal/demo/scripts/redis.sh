# The Redis lock as it should be: taken by one command that also ends it, with a value that nobody else has, and deleted only if it still has
# that. It counts its holders in the same step: that number is the fencing token.
set -eu
take='if redis.call("SET", KEYS[1], ARGV[1], "NX", "PX", ARGV[2]) then return redis.call("INCR", KEYS[2]) else return "" end'
free='if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) else return 0 end'
mine="$NAME.$$"

until TOKEN=$(redis-cli -p "$REDIS_PORT" EVAL "$take" 2 orders:lock orders:token "$mine" "$TTL_MS") && [ -n "$TOKEN" ]; do
	sleep 0.2
done
case $TOKEN in
*[!0-9]*) echo "redis-cli: $TOKEN" >&2; exit 1 ;;
esac
export TOKEN
sh "$(dirname "$0")/worker.sh"
[ "$(redis-cli -p "$REDIS_PORT" EVAL "$free" 1 orders:lock "$mine")" = 1 ] || echo "late the lock had another holder"
