# Unmounts the path $1, also if a process that cannot be found still uses it. Removes the files and
# directories that follow, innermost first, if they are empty: they were made for the mount.
umount "$1" 2>/dev/null || umount -l "$1" || exit
shift
for name; do
	if [ -d "$name" ]; then
		rmdir "$name" 2>/dev/null
	elif [ -f "$name" ] && [ ! -s "$name" ]; then
		rm -f "$name"
	fi
done
exit 0
