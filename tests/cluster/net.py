"""A network namespace for each node of a test, on a bridge (needs root). Wrong neighbour entries
cut connections, so packets are lost silently, as in a real partition."""

import os
import random
import shutil
import subprocess
import tempfile


def run(*words):
    subprocess.run(words, check=True, capture_output=True, text=True)


def possible():
    """Why namespaces cannot be used here; None if they can. Tries everything that the tests use
    once, with two namespaces, because containers may forbid parts of it."""
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    net = None
    try:
        net = Net(2)
        net.isolate(0)
        net.heal()
        with tempfile.TemporaryDirectory() as directory:
            run("mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", directory)
            run("umount", directory)
    except OSError as error:
        return f"no network namespaces here: {error}"
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {' '.join(error.cmd)}: {error.stderr.strip()}"
    finally:
        if net:
            net.close()
    return None


class Net:
    """`count` namespaces. Node n has the address `addresses[n]`. Processes outside reach all of
    them, whatever is cut between them."""

    def __init__(self, count):
        # No name is used twice: the kernel removes a namespace and its devices some time after the
        # request.
        self.name = f"m{random.randrange(1 << 24):06x}"
        subnet = f"10.{random.randint(128, 250)}.{random.randint(0, 250)}"
        self.addresses = [f"{subnet}.{n + 1}" for n in range(count)]
        self.spaces = [f"{self.name}n{n}" for n in range(count)]
        self.cut = set()
        try:
            self.make(subnet)
        except (OSError, subprocess.CalledProcessError):
            self.close()
            raise

    def make(self, subnet):
        run("ip", "link", "add", self.name, "type", "bridge")
        run("ip", "addr", "add", f"{subnet}.254/24", "dev", self.name)
        run("ip", "link", "set", self.name, "up")
        for n, space in enumerate(self.spaces):
            inside, outside = f"{space}i", f"{space}o"
            run("ip", "netns", "add", space)
            run("ip", "link", "add", outside, "type", "veth", "peer", "name", inside, "netns",
                space)
            run("ip", "link", "set", outside, "master", self.name, "up")
            self.inside(n, "ip", "addr", "add", f"{self.addresses[n]}/24", "dev", inside)
            self.inside(n, "ip", "link", "set", inside, "up")
            self.inside(n, "ip", "link", "set", "lo", "up")

    def inside(self, n, *words):
        run("ip", "netns", "exec", self.spaces[n], *words)

    def prefix(self, n):
        """The prefix of a command that runs as node n."""
        return ["ip", "netns", "exec", self.spaces[n]]

    def silence(self, sender, receiver):
        """Packets from `sender` do not reach `receiver` any more."""
        self.inside(sender, "ip", "neigh", "replace", self.addresses[receiver], "lladdr",
            "02:00:00:00:00:01", "dev", f"{self.spaces[sender]}i", "nud", "permanent")
        self.cut.add((sender, receiver))

    def isolate(self, n, one_way=False):
        """No other node receives packets from the node. It receives none either, unless
        `one_way`."""
        for other in range(len(self.spaces)):
            if other != n:
                self.silence(n, other)
                if not one_way:
                    self.silence(other, n)

    def heal(self):
        for sender, receiver in self.cut:
            self.inside(
                sender,
                "ip",
                "neigh",
                "del",
                self.addresses[receiver],
                "dev",
                f"{self.spaces[sender]}i",
            )
        self.cut.clear()

    def close(self):
        if shutil.which("ip"):
            for space in self.spaces:
                subprocess.run(["ip", "link", "del", f"{space}o"], capture_output=True)
                subprocess.run(["ip", "netns", "del", space], capture_output=True)
            subprocess.run(["ip", "link", "del", self.name], capture_output=True)
