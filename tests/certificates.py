"""Certificates for nodes and clients, made with openssl."""

import subprocess


class Authority:
    """A root certificate authority, and the certificates that it signs: `certificate` and `key` in
    a directory."""

    def __init__(self, directory, name="root"):
        self.directory, self.certificate, self.key = (
            directory,
            directory / f"{name}.crt",
            directory / f"{name}.key",
        )
        self.run(
            "req",
            "-x509",
            *self.new_key(self.key),
            "-out",
            self.certificate,
            "-subj",
            f"/CN={name}",
            "-days",
            "30",
        )

    @staticmethod
    def run(*arguments):
        subprocess.run(
            ["openssl", *map(str, arguments)],
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )

    @staticmethod
    def new_key(path):
        return [
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-noenc",
            "-keyout",
            path,
        ]

    def sign(self, name, addresses=()):
        """(certificate, key) for a name."""
        certificate, key, request = (
            self.directory / f"{name}.{end}" for end in ("crt", "key", "csr")
        )
        self.run("req", *self.new_key(key), "-out", request, "-subj", f"/CN={name}")
        extensions = self.directory / f"{name}.ext"
        extensions.write_text(
            "subjectAltName="
            + ",".join(["DNS:localhost", *(f"IP:{address}" for address in addresses)])
        )
        self.run("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key,
            "-CAcreateserial", "-out", certificate, "-days", "10",
                 "-extfile", extensions)
        return certificate, key
