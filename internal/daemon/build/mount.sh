# Mounts the file or directory $2 over $3, or with $1 tmpfs a file system in memory of $2 MiB. $4 is "ro" or empty.
set -e
kind=$1 source=$2 target=$3 mode=$4
if [ "$kind" = tmpfs ]; then
	mkdir -p "$target"
	exec mount -t tmpfs -o "${source:+size=${source}m,}mode=1777" tmpfs "$target"
fi
if [ -d "$source" ]; then
	mkdir -p "$target"
else
	mkdir -p "$(dirname "$target")"
	[ -e "$target" ] || : >"$target"
fi
mount --bind "$source" "$target"
if [ "$mode" = ro ]; then mount -o remount,bind,ro "$target"; fi
