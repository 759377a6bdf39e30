# The driver of bash. It keeps to drivers/wire.py but for this: a request is text for bash that sets
# __forkd_id, __forkd_code, __forkd_op, __forkd_seed, __forkd_lasting and __forkd_env, and ends with
# a NUL byte; and nothing reads the control socket, so that the driver is told of forks and of
# lasting variables with the next call.
#
# Code is sourced at the top level, so that what it declares stays, and without the driver's
# descriptors. SIGINT makes it return. Like any script it may change what it finds here: it harms
# its own context only.
exec 4<&- 5<&-
trap '' INT

# Exports variables and notes what they were: name, "set" or "unset", value.
__forkd_give() {
	__forkd_was=()
	while (($#)); do
		if [[ -v $1 ]]; then __forkd_was+=("$1" set "${!1}"); else __forkd_was+=("$1" unset ''); fi
		export "$1=$2"
		shift 2
	done
}

__forkd_take_back() {
	while (($#)); do
		if [[ $2 == set ]]; then export "$1=$3"; else unset "$1"; fi
		shift 3
	done
}

__forkd_failed() {
	builtin printf 'M%d {"type":"error","name":"%s","value":"%s","traceback":""}\n' "$__forkd_id" "$1" "$2" >&3
}

builtin printf 'M0 {"type":"ready"}\n' >&3
while IFS= read -r -d '' -u 3 __forkd_request; do
	eval "$__forkd_request"
	__forkd_give "${__forkd_lasting[@]}"
	if [[ $__forkd_op == forked ]]; then RANDOM=$__forkd_seed; fi
	__forkd_give "${__forkd_env[@]}"
	__forkd_interrupted=
	trap '__forkd_interrupted=1; return 130' INT
	source /dev/fd/6 6<<<"$__forkd_code" 3>&-
	__forkd_status=$?
	trap '' INT
	__forkd_take_back "${__forkd_was[@]}"
	if [[ $__forkd_interrupted ]]; then
		__forkd_failed KeyboardInterrupt ''
	elif ((__forkd_status)); then
		__forkd_failed ExitStatus "$__forkd_status"
	fi
	builtin printf 'D%d\n' "$__forkd_id" >&3
done
