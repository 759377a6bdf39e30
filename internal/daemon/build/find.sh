# Says which files the pattern $1 of the shell matches, a line each: "d" for a directory, or "f", and
# the path. Sockets are left out, because tar has no entry for them.
IFS=
for match in $1; do
	case $match in
	*/. | */..) continue ;; # some shells match them by .*
	esac
	if [ -S "$match" ]; then continue; fi
	if [ -d "$match" ]; then
		printf 'd%s\n' "$match"
	elif [ -e "$match" ] || [ -L "$match" ]; then
		printf 'f%s\n' "$match"
	fi
done
