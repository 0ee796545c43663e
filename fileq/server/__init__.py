"""The REST server: `fileq serve`. The only package that imports starlette and uvicorn.

routes.py            the one table of endpoints, and what documents it; api/ holds their functions, by area
route.py             what a row of it is, and what a function gets
web_app.py           what holds for every answer: the host, security headers, CORS, the request id;
                     and one request to the API, step by step: who asks, may they, is it valid, run it, answer
problems.py          errors as problem+json; bodies and queries into Structs, with everything that is wrong at once
authentication.py    who asks: a key, a session, HTTP Basic or a proxy; what that caller may do; signed texts
limits.py            how much of everything one caller gets; which addresses are one client; the pools of threads
hidden_paths.py      answers without the paths of files
services.py          one of each thing that functions work with, and its threads: audit, samples, uploads
event_hub.py         the events of the broker, and the streams of them
connections.py       how many connections there are, and how long a client may take
role.py              the roles `serve` and `start`, and the server as a service of them
console/             the web console: a view is one page of it; a page is a part of a list

Importing this package imports nothing. Functions call fileq.client and fileq.commands; rules about jobs belong there.
"""
