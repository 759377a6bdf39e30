FROM debian:12
RUN <<EOT
set -e
echo one
echo two > /x
EOT
RUN <<-EOT
	echo tabs
	EOT
RUN cat <<A > /a && cat <<B > /b
in a
A
in b
B
