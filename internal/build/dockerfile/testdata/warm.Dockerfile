FROM python:3.12
ENV PORT=8000
USER app
# forkd: warm python3 -m http.server $PORT
# forkd: probe curl -fs localhost:$PORT
RUN echo after
# forkd: warm python3 -c 'import json'
