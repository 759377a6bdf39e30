# Kills the processes whose environment has the text $1.
for n in 1 2 3; do
	found=$(grep -lF -- "$1" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3)
	[ -n "$found" ] || exit 0
	kill -9 $found 2>/dev/null
	sleep 0.1
done
exit 0
