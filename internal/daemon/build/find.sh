# Says which files the pattern $1 of the shell matches, a line each: "d" for a directory, or "f", and
# the path.
IFS=
for match in $1; do
	if [ -d "$match" ]; then
		printf 'd%s\n' "$match"
	elif [ -e "$match" ] || [ -L "$match" ]; then
		printf 'f%s\n' "$match"
	fi
done
