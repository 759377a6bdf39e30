FROM debian:12
COPY --parents src/a.py src/sub/b.py /p/
COPY --parents src/./sub/b.py /q/
COPY --parents **/*.py /r/
COPY --parents src /s
