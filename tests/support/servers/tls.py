"""A certificate authority for one test run, with a server's and a client's certificate."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CA = ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign"]
_LEAF = """\
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth,clientAuth
subjectAltName=DNS:localhost,IP:127.0.0.1
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
"""


@dataclass(frozen=True)
class Certificates:
    ca_file: str
    server_cert_file: str
    server_key_file: str
    cert_file: str
    key_file: str

    def client_options(self) -> dict[str, Any]:
        """The options of redis-py for a connection with the client certificate."""
        return {
            "ssl": True,
            "ssl_ca_certs": self.ca_file,
            "ssl_certfile": self.cert_file,
            "ssl_keyfile": self.key_file,
        }

    def server_directives(self) -> dict[str, Any]:
        """Server and client need a certificate; `CONFIG SET tls-auth-clients no` accepts clients without one."""
        return {
            "tls_ca_cert_file": self.ca_file,
            "tls_cert_file": self.server_cert_file,
            "tls_key_file": self.server_key_file,
            "tls_auth_clients": True,
            "tls_replication": True,
        }


def make_certificates(directory: Path) -> Certificates:
    """Makes the certificates with openssl in `directory`, valid for a day."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "leaf.ext").write_text(_LEAF)
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    extensions = [word for extension in _CA for word in ("-addext", extension)]
    _openssl(directory, "req", "-x509", *key, "-days", "1", "-subj", "/CN=fileq test CA",
             "-keyout", "ca.key", "-out", "ca.crt", *extensions)  # fmt: skip
    for name in ("server", "client"):
        _openssl(directory, "req", *key, "-subj", f"/CN=fileq test {name}",
                 "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
        _openssl(directory, "x509", "-req", "-in", f"{name}.csr", "-days", "1", "-extfile", "leaf.ext",
                 "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-out", f"{name}.crt")  # fmt: skip
    files = ("ca.crt", "server.crt", "server.key", "client.crt", "client.key")
    return Certificates(*(str(directory / name) for name in files))


def _openssl(directory: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"openssl {' '.join(arguments)} failed:\n{done.stderr}")
