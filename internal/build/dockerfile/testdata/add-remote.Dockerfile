FROM debian:12
ARG V=1.2
ADD --checksum=sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa https://example.com/d/tool-$V.tar.gz?x=1 /opt/
ADD --checksum=sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa --chmod=755 http://example.com/ /bin/tool
ADD https://example.com/x.git#cccccccccccccccccccccccccccccccccccccccc /src
ADD --keep-git-dir --checksum=cccccccccccccccccccccccccccccccccccccccc git://example.com/y#v1:sub/dir /y/
