"""No way out of this machine: on PYTHONPATH it holds for a process and its children.

Whatever wants to reach another machine, or asks for its address, is refused and written to the file of ``REFUSED``.
"""

import os
import socket
import traceback

LOCAL = ("127.0.0.1", "localhost", "::1", "0.0.0.0", "::", "", None, socket.gethostname())


def _refuse_unless_local(host: object) -> None:
    if isinstance(host, bytes):
        host = host.decode()
    if host not in LOCAL:
        with open(os.environ["REFUSED"], "a", encoding="utf-8") as file:
            file.write(f"{host}\n{''.join(traceback.format_stack(limit=8))}\n")
        raise OSError(f"the network is blocked: {host}")


def _guarded(method):
    def guarded(self, *arguments):
        if self.family in (socket.AF_INET, socket.AF_INET6):
            _refuse_unless_local(arguments[-1][0])
        return method(self, *arguments)

    return guarded


def _looked_up(function):
    def looked_up(host, *arguments, **options):
        _refuse_unless_local(host)
        return function(host, *arguments, **options)

    return looked_up


for name in ("connect", "connect_ex", "sendto"):
    setattr(socket.socket, name, _guarded(getattr(socket.socket, name)))
for name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex"):
    setattr(socket, name, _looked_up(getattr(socket, name)))
