"""The REST server: `fileq serve`. The only package that imports starlette and uvicorn.

routes.py            the one table of endpoints; api/ holds their functions, by area
route.py             what a row of it is, and what a function gets
api_app.py           one request, step by step: who asks, may they, is it valid, run it, answer
web_app.py           what holds for every answer: the host, security headers, CORS, the request id
problems.py          errors as problem+json
decoding.py          bodies and queries into Structs, with everything that is wrong at once
authentication.py    who asks: a key, a session, HTTP Basic or a proxy
sessions.py, signing.py, csrf.py, rate_limit.py, audit.py
broker_pool.py       the threads in which functions call the broker
job_waits.py         requests that wait for the end of a job
openapi.py           openapi.json and docs/api.md from the table
http_service.py, role.py  the server as a service of a role

Importing this package imports nothing. Functions call fileq.client and fileq.commands; rules about jobs belong there.
"""
