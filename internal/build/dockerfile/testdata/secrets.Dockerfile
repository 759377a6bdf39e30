FROM debian:12
RUN --mount=type=secret,id=npm,target=/root/.npmrc,required npm ci
RUN --mount=type=secret,id=dir/aws,mode=0440,uid=7,gid=8 true
RUN --mount=type=secret,id=TOKEN,env=GH_TOKEN --mount=type=secret,target=/etc/key true
RUN --mount=type=secret,id=TOKEN,env=GH_TOKEN,target=/t true
# forkd: warm true
