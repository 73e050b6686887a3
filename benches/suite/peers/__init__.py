"""Peers: other servers for the same plants, each set up as its own documentation recommends.

A module has a NAME, a TITLE, the DURABILITY of a create, the AUTHENTICATION, the PACKAGES that it needs, and two functions:
`version(context)` and `start(context, collection)`, which stores the plants and returns the server and the requests to it."""

from peers import fastapi, fastify, json_server, kinto, pocketbase

ALL = (pocketbase, fastify, fastapi, json_server, kinto)
# Those that a target names.
WITH_TARGET = (pocketbase, fastify)
