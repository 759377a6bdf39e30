# Mounts the file or directory $2 over $3, or with $1 tmpfs a file system in memory of $2 MiB. $4 is "ro" or empty.
# Says which files and directories it had to make for that, a line each, innermost first.
set -e
kind=$1 source=$2 target=$3 mode=$4
made=
if [ "$kind" = bind ] && [ -L "$source" ]; then # a link of another guest, which mount would follow in this one
	printf '%s\n' "the source ${source##*/} is a symbolic link: name the file that it leads to, or mount its directory" >&2
	exit 1
fi
# Makes a directory with its parents.
makedir() {
	[ ! -d "$1" ] || return 0
	makedir "$(dirname "$1")"
	mkdir "$1"
	made="$1
$made"
}
if [ "$kind" = tmpfs ] || [ -d "$source" ]; then
	makedir "$target"
else
	makedir "$(dirname "$target")"
	if [ ! -e "$target" ]; then
		: >"$target"
		made="$target
$made"
	fi
fi
printf %s "$made"
if [ "$kind" = tmpfs ]; then
	exec mount -t tmpfs -o "${source:+size=${source}m,}mode=1777" tmpfs "$target"
fi
mount --bind "$source" "$target"
if [ "$mode" = ro ]; then mount -o remount,bind,ro "$target"; fi
