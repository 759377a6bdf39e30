#!/bin/sh
# workbench: starts the desktop, its browser and JupyterLab as `user`, and returns when all of them answer.
# Ports are those of the loopback address: the way in from outside is forkd's, which asks for a token.
set -e

start() { # NAME COMMAND…
    name=$1
    shift
    setsid -f runuser -u user -- env HOME=/home/user DISPLAY=:1 "$@" </dev/null >"/var/log/$name.log" 2>&1
}

answers() { # NAME URL
    for i in $(seq 600); do
        curl -fs -o /dev/null "$2" && return 0 || sleep 1
    done
    echo "$1 does not answer at $2:"
    tail -n 20 "/var/log/$1.log"
    exit 1
}

cd /home/user
mkdir -p /tmp/.X11-unix && chmod 1777 /tmp/.X11-unix
start vnc Xtigervnc :1 -geometry 1280x800 -depth 24 -localhost -SecurityTypes None -rfbport 5901
for i in $(seq 300); do [ -S /tmp/.X11-unix/X1 ] && break || sleep 1; done
start openbox openbox
start novnc websockify --web /usr/share/novnc 127.0.0.1:6080 127.0.0.1:5901
start chromium chromium --remote-debugging-port=9222 --disable-gpu --disable-dev-shm-usage --no-first-run \
    --disable-background-networking --disable-quic --password-store=basic about:blank
start jupyter jupyter-lab --no-browser --ip=127.0.0.1 --port=8888 --IdentityProvider.token= \
    --ServerApp.allow_remote_access=True --ServerApp.disable_check_xsrf=True
answers novnc http://127.0.0.1:6080/vnc.html
answers chromium http://127.0.0.1:9222/json/version
answers jupyter http://127.0.0.1:8888/api/status

# A kernel that runs already, and a first picture: what draws the desktop is loaded.
curl -fs -X POST http://127.0.0.1:8888/api/kernels >/dev/null
scrot -o /tmp/warm.png && rm /tmp/warm.png
