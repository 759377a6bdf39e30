FROM debian:12 AS tools
RUN true
FROM debian:12
WORKDIR /app
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=cache,id=apt,target=lists,uid=3,gid=4,mode=0700,sharing=locked pip install x
RUN --mount=type=bind,source=src,target=/src --mount=type=bind,from=tools,source=/opt,target=/opt,rw ls /src
RUN --mount=type=tmpfs,target=/tmp,size=10000000 make
RUN --mount=type=bind,target=. ls
