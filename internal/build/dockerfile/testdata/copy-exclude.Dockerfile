FROM debian:12
COPY --exclude=*.py --exclude=sub src /a/
COPY --exclude=**/*.py src /b/
