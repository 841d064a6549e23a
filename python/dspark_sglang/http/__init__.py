"""The HTTP manners of the server: a thin layer of ASGI middlewares around SGLang's own application."""
