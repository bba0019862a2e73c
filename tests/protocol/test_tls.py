"""TLS for clients: which clients are accepted, on which ports, with which certificate, and what
happens when the files change."""

import contextlib
import os
import socket
import ssl
import time

import pytest
from certificates import Authority
from launch import CQL_PORT, Node, StartFailed
from test_drivers_v5 import run_program
from wire import OPTIONS, SUPPORTED, Wire

SSL_PORT, SHARD_AWARE_SSL_PORT = 9142, 19142

pytestmark = pytest.mark.node


class TlsWire(Wire):
    """A raw connection in version 4 over TLS."""

    def __init__(self, address, context, port=SSL_PORT, source=None, **options):
        plain = socket.create_connection((address, port), timeout=20, source_address=source)
        self.socket = context.wrap_socket(plain, server_hostname=address)
        self.decompress = None
        answer = self.ask(1, b"\0\1\0\x0bCQL_VERSION\0\x053.0.0")
        assert answer.opcode == 2, f"opcode {answer.opcode} after STARTUP"

    def serial(self):
        return self.socket.getpeercert()["serialNumber"]


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def options(certificate, key, **more):
    pairs = {"enabled": "true", "certificate": certificate, "keyfile": key, **more}
    return "{" + ", ".join(f"{name}: {value}" for name, value in pairs.items()) + "}"


@contextlib.contextmanager
def encrypted(authority, shards=2, config=None, prefix=(), **more):
    node = Node(shards=shards, prefix=prefix)
    try:
        node.certificate, node.key = authority.sign("node", [node.address])
        node.config = {
            "client_encryption_options": options(node.certificate, node.key, **more),
            **(config or {}),
        }
        node.start()
        yield node
        assert node.alive(), node.log_tail()
        assert node.stop() == 0, node.log_tail()
    finally:
        node.close()


def trusting(authority):
    return ssl.create_default_context(cafile=str(authority.certificate))


def test_ports_shards_and_what_clients_are_told(authority):
    with encrypted(authority) as node:
        context = trusting(authority)
        with TlsWire(node.address, context) as wire:
            wire.works()
            supported = wire.ask(OPTIONS)
            assert (
                supported.opcode == SUPPORTED
                and b"SCYLLA_SHARD_AWARE_PORT_SSL" in supported.body
                and b"19142" in supported.body
            )
            rows = wire.query(
                "SELECT port, ssl_enabled, ssl_protocol, ssl_cipher_suite FROM system.clients"
            ).rows()
            own = next(
                row for row in rows if int.from_bytes(row[0], "big") == wire.socket.getsockname()[1]
            )
            assert (
                own[1] == b"\1"
                and own[2] == b"TLSv1.3"
                and own[3] == wire.socket.cipher()[0].encode()
            )
        # From the node's own loopback address, and outside of the kernel's ephemeral range, so that
        # no other process uses these ports.
        for port in range(20000, 20004):
            with TlsWire(
                node.address, context, port=SHARD_AWARE_SSL_PORT, source=(node.address, port)
            ) as wire:
                body = wire.ask(OPTIONS).body
                at = body.index(b"SCYLLA_SHARD\0\1") + len(b"SCYLLA_SHARD\0\1")
                assert body[at : at + 3] == b"\0\1" + str(port % 2).encode()
        # The unencrypted ports are open as well.
        with Wire(node.address) as wire:
            wire.works()
        old = trusting(authority)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with TlsWire(node.address, old) as wire:
            assert wire.socket.version() == "TLSv1.2"
            wire.works()


def test_clients_without_tls_are_rejected_and_delay_no_other_client(authority):
    with encrypted(authority) as node:
        idle = [socket.create_connection((node.address, SSL_PORT)) for _ in range(50)]
        with pytest.raises(ssl.SSLError):
            TlsWire(node.address, ssl.create_default_context())
        for data in (b"\4\0\0\1\5\0\0\0\0", os.urandom(500), b"\x16\3\1\2\0" + os.urandom(512)):
            with socket.create_connection((node.address, SSL_PORT), timeout=20) as plain:
                plain.sendall(data)
                with contextlib.suppress(ConnectionResetError):
                    while plain.recv(4096):
                        pass
        with TlsWire(node.address, trusting(authority)) as wire:
            wire.works()
        for it in idle:
            it.close()


def test_handshakes_that_do_not_come_do_not_lock_out_clients(authority):
    """Connections without a handshake use all connection slots: one of them is evicted for a client
    long before the time limit of the handshake."""
    with encrypted(authority, prefix=["prlimit", "--nofile=1024:1024"]) as node:
        context = trusting(authority)
        first = TlsWire(node.address, context)
        silent = [
            socket.create_connection((node.address, SSL_PORT), timeout=20) for _ in range(500)
        ]
        time.sleep(
            1.2
        )  # Longer than the grace for STARTUP, much shorter than the time limit of a handshake.
        with TlsWire(node.address, context) as second:
            second.works()
        first.works()
        assert node.metric("scylla_transport_connections_evicted_silent") >= 1
        for s in (*silent, first.socket):
            s.close()


def test_a_port_of_both_names_is_encrypted(authority):
    with encrypted(authority, shards=1) as node:
        node.config.update(
            {"native_transport_port_ssl": CQL_PORT, "native_shard_aware_transport_port_ssl": 0}
        )
        node.wait_cql = lambda timeout: wait_tls(node, authority, CQL_PORT)
        node.restart()
        with TlsWire(node.address, trusting(authority), port=CQL_PORT) as wire:
            wire.works()
            assert b"SCYLLA_SHARD_AWARE_PORT_SSL" not in wire.ask(OPTIONS).body
        for port in (SSL_PORT, SHARD_AWARE_SSL_PORT):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((node.address, port))


def wait_tls(node, authority, port):
    end = time.monotonic() + 60
    while True:
        try:
            with TlsWire(node.address, trusting(authority), port=port):
                return
        except OSError:
            assert node.process.poll() is None and time.monotonic() < end, node.log_tail()
            time.sleep(0.05)


@pytest.mark.long
def test_version_5_with_a_driver(authority):
    with encrypted(authority) as node:
        run_program("scylla", node.address, "lz4", SSL_PORT, authority.certificate)


def test_large_answers(authority):
    with encrypted(authority) as node:
        context = trusting(authority)
        with TlsWire(node.address, context) as wire:
            wire.query(
                "CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy',"
                " 'replication_factor': 1}"
            )
            wire.query("CREATE TABLE k.t (pk int, ck int, v blob, PRIMARY KEY (pk, ck))")
            for ck in range(30):
                wire.query(
                    f"INSERT INTO k.t (pk, ck, v) VALUES (1, {ck}, ?)",
                    values=[bytes([ck]) * 100_000],
                )
            for _ in range(3):
                rows = wire.query("SELECT v FROM k.t WHERE pk = 1").rows()
                assert [row[0] for row in rows] == [bytes([ck]) * 100_000 for ck in range(30)]


def test_clients_need_a_certificate_where_that_is_required(authority, tmp_path):
    with encrypted(authority, require_client_auth="true", truststore=authority.certificate) as node:
        def refused(context):
            with pytest.raises(Exception) as error:
                TlsWire(node.address, context)
            assert not isinstance(error.value, AssertionError), error.value

        refused(trusting(authority))
        stranger = Authority(tmp_path, "stranger")
        context = trusting(authority)
        context.load_cert_chain(*map(str, stranger.sign("client-of-stranger")))
        refused(context)
        context = trusting(authority)
        context.load_cert_chain(*map(str, authority.sign("client")))
        with TlsWire(node.address, context) as wire:
            wire.works()


def test_changed_certificates_are_used_without_a_restart(authority, tmp_path):
    with encrypted(authority) as node:
        context = trusting(authority)
        with TlsWire(node.address, context) as first:
            before = first.serial()
            # A new certificate does not fit the old key: connections keep using the old pair.
            fresh = Authority.__new__(Authority)
            fresh.directory, fresh.certificate, fresh.key = (
                tmp_path,
                authority.certificate,
                authority.key,
            )
            certificate, key = fresh.sign("renewed", [node.address])
            os.replace(certificate, node.certificate)
            wait_for(lambda: "cannot be used" in node.log_path.read_text(errors="replace"))
            with TlsWire(node.address, context) as wire:
                assert wire.serial() == before
                wire.works()
            os.replace(key, node.key)

            def renewed():
                with TlsWire(node.address, context) as wire:
                    return wire.serial() != before

            wait_for(renewed)
            first.works()


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_files_that_cannot_be_used_are_named(authority, tmp_path):
    certificate, key = authority.sign("node")
    (tmp_path / "empty").write_text("")
    for settings, why in (
        (options(tmp_path / "missing", key), "missing: No such file"),
        (options(certificate, tmp_path / "empty"), "there is no key"),
        (options(certificate, authority.key), "node.crt with"),
        (options(certificate, key, require_client_auth="true"), "truststore"),
        (
            options(certificate, key, certificate_revocation_list="x"),
            "certificate_revocation_list is not supported",
        ),
    ):
        node = Node(shards=1, config={"client_encryption_options": settings})
        try:
            with pytest.raises(StartFailed) as failed:
                node.start()
            assert why in str(failed.value), failed.value
        finally:
            node.close()
