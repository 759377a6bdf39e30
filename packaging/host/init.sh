#!/bin/sh
# The initramfs of the emulated Debian: drivers, the root file system, then its own systemd.
export PATH=/bin
mkdir -p /proc /sys /dev /sysroot
mount -t devtmpfs devtmpfs /dev
mount -t proc proc /proc
mount -t sysfs sysfs /sys
for module in /lib/forkd-modules/*.ko; do insmod "$module"; done
n=0
until mount -t ext4 /dev/vda /sysroot 2>/dev/null; do
	n=$((n + 1))
	[ $n -lt 200 ] || { echo "forkd: no root file system"; poweroff -f; }
	sleep 0.1
done
umount /sys /proc /dev
exec switch_root /sysroot /sbin/init
