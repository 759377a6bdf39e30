# Moves what is in the directory $1 to the path $2, as COPY of a Dockerfile does. It belongs to $3 then,
# and has the mode $4, if those are not empty. With $5 it is one file, which may get another name. With $6 it is
# from others: a directory is not placed by way of a link that leads out of the target.
set -e
staging=$1 target=$2 owner=$3 mode=$4 single=$5 others=$6
case $owner in
'' | *:*) ;;
*[!0-9]*) owner=$owner: ;;
*) owner=$owner:$owner ;; # a number without an account has no group of its own
esac
# Makes a directory with its parents, and gives those that are new to the owner.
makedir() {
	[ ! -d "$1" ] || return 0
	new=$1
	while above=$(dirname "$new") && [ ! -d "$above" ]; do new=$above; done
	mkdir -p "$1"
	[ -z "$owner" ] || chown -R "$owner" "$new"
}
cd "$staging"
set --
for entry in ./* ./.[!.]* ./..?*; do
	if [ -e "$entry" ] || [ -L "$entry" ]; then set -- "$@" "$entry"; fi
done
if [ $# -gt 0 ]; then
	[ -z "$owner" ] || chown -h -R "$owner" "$@"
	[ -z "$mode" ] || find "$@" ! -type l -exec chmod "$mode" {} + # chmod -R would follow links among "$@"
fi
if [ -n "$single" ]; then
	case $target in
	*/) makedir "$target" ;;
	*) makedir "$(dirname "$target")" ;;
	esac
	if [ -d "$target" ]; then target=${target%/}/${1#./}; fi
	if [ -d "$target" ] && [ ! -L "$target" ]; then
		echo "$target is a directory, and the source is a file" >&2
		exit 1
	fi
	rm -f "$target" # mv would follow a link to a directory
	mv -f "$1" "$target"
	exit
fi
makedir "$target"
[ $# -gt 0 ] || exit 0
if [ -n "$others" ]; then
	out=$(find "$@" -type d -exec sh -c '
target=$1
root=$(cd -P "$target" && pwd -P && echo .) # the dot keeps line feeds before it
root=${root%??}
shift
for dir; do
	[ -L "$target/$dir" ] && [ -d "$target/$dir" ] || continue
	real=$(cd -P "$target/$dir" && pwd -P && echo .)
	case ${real%??}/ in
	"${root%/}"/*) ;;
	*) printf '%s\n' "$dir" ;; # with the "./" of find, because $(…) removes line feeds at the end
	esac
done' sh "$target" {} +)
	if [ -n "$out" ]; then
		printf '%s\n' "the source has directories where $target has links that lead out of it: $out" >&2
		exit 1
	fi
fi
# By tar, which replaces a link to a file instead of writing by way of it, and can keep a link to a
# directory, such as /lib.
keep=
if tar --version 2>/dev/null | grep -q GNU; then keep="--keep-directory-symlink --no-overwrite-dir"; fi
tar -cf - "$@" | tar -xpf - -C "$target" $keep
