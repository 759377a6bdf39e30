# Moves the file, link or content of the directory $1 to $2, as COPY of a Dockerfile does. It
# belongs to $3 then, and has the mode $4, if that is not empty.
set -e
source=$1 target=$2 owner=$3 mode=$4
case $owner in
*:* | *[!0-9]*) ;;
*) owner=$owner:$owner ;; # a number without an account has no group of its own
esac
case $owner in
*:*) ;;
*) owner=$owner: ;;
esac
if [ ! -e "$source" ] && [ ! -L "$source" ]; then
	echo "the archive that was sent does not have the source" >&2
	exit 1
fi
chown -h -R "$owner" "$source"
if [ -L "$source" ] || [ -f "$source" ]; then
	case $target in
	*/) mkdir -p "$target" ;;
	*) mkdir -p "$(dirname "$target")" ;;
	esac
	if [ -n "$mode" ] && [ ! -L "$source" ]; then chmod "$mode" "$source"; fi
	exec mv -f "$source" "$target"
fi
if [ -n "$mode" ]; then chmod -R "$mode" "$source"; fi
mkdir -p "$target"
# By tar, which replaces a link to a file instead of writing by way of it, and can keep a link to a
# directory, such as /lib.
keep=
if tar --version 2>/dev/null | grep -q GNU; then keep="--keep-directory-symlink --no-overwrite-dir"; fi
cd "$source"
tar -cf - . | tar -xpf - -C "$target" $keep
