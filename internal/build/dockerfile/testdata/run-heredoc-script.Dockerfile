FROM python:3.12
RUN <<SCRIPT
#!/usr/bin/env python3
# forkd: warm this is the script's own text
print("hello")
SCRIPT
