# A worker as many are written: it reads, works, writes, and believes in its lock throughout. It is run with the lock taken, by `etcdctl lock`
# or by redis.sh, and has the lock's fencing token in TOKEN or ETCD_LOCK_REV. STORE is a file, or an object behind fenceproxy.
set -eu
token=${ETCD_LOCK_REV:-$TOKEN}
echo "locked $token"

case $STORE in
http://*) state=$(curl -sS --noproxy '*' --fail-with-body -H "X-Fence-Token: $token" -H "X-Fence-Holder: $NAME" "$STORE") ;;
*) state=$(cat "$STORE") ;;
esac
echo "read $state"

until [ -e "$WORKED" ]; do sleep 0.1; done # the work, which takes as long as the story has it
state="$state $ADD"

case $STORE in
http://*)
	if said=$(curl -sS --noproxy '*' --fail-with-body -X PUT -H "X-Fence-Token: $token" -H "X-Fence-Holder: $NAME" --data "$state" "$STORE"); then
		echo "wrote $state"
	else
		echo "refused $said" | tr '\n' ' '
		echo
	fi
	;;
*)
	echo "$state" >"$STORE.$NAME"
	mv "$STORE.$NAME" "$STORE"
	echo "wrote $state"
	;;
esac
