# Unmounts the path $1, also if a process that cannot be found still uses it.
umount "$1" 2>/dev/null || umount -l "$1"
