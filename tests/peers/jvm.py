"""Java for Apache Cassandra: its jars, checked against a pinned list, and the flags that it
needs."""

import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
CACHE = pathlib.Path(os.environ.get("MESSINA_CACHE", pathlib.Path.home() / ".cache/messina"))
VERSION = re.search(r"<version>(\d+\.\d+\.\d+)</version>", (HERE / "pom.xml").read_text())[1]
HOME = CACHE / f"cassandra-{VERSION}"
LIB, CLASSES = HOME / "lib", HOME / "classes"
PINNED = HERE / "jars.sha256"  # what `sha256sum *.jar` prints
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"

# What the code of Cassandra 5.0 reaches into of Java 17.
EXPORTS = {
    "java.base": "java.lang.ref jdk.internal.misc jdk.internal.ref sun.nio.ch",
    "java.management.rmi": "com.sun.jmx.remote.internal.rmi",
    "java.rmi": "sun.rmi.registry sun.rmi.server sun.rmi.transport.tcp",
    "java.sql": "java.sql",
    "jdk.attach": "sun.tools.attach",
    "jdk.compiler": "com.sun.tools.javac.file",
    "jdk.unsupported": "sun.misc",
}
OPENS = {
    "java.base": """
        java.io java.lang java.lang.module java.lang.reflect java.math java.net java.nio java.util
        java.util.concurrent java.util.concurrent.atomic jdk.internal.loader jdk.internal.math
        jdk.internal.module jdk.internal.ref jdk.internal.reflect jdk.internal.util.jar sun.nio.ch
    """,
    "jdk.compiler": "com.sun.tools.javac",
    "jdk.management": "com.sun.management.internal",
}


def modules():
    """The flags that open Java's modules to Cassandra."""
    flags = ["-Djdk.attach.allowAttachSelf=true"]
    for option, table in (("--add-exports", EXPORTS), ("--add-opens", OPENS)):
        for module, packages in table.items():
            flags += [f"{option}={module}/{package}=ALL-UNNAMED" for package in packages.split()]
    return flags


def sums(folder):
    """The lines of `sha256sum *.jar` for a folder."""
    jars = sorted(folder.glob("*.jar"))
    digests = (hashlib.sha256(jar.read_bytes()).hexdigest() for jar in jars)
    return [f"{digest}  {jar.name}" for digest, jar in zip(digests, jars)]


def install():
    """Fetches the jars, once. Ends the program when they are not the pinned ones."""
    stamp, pinned = HOME / "installed.sha256", PINNED.read_text()
    if stamp.exists() and stamp.read_text() == pinned:
        return
    shutil.rmtree(HOME, ignore_errors=True)
    LIB.mkdir(parents=True)
    command = ["mvn", "-B", "-q", "-f", str(HERE / "pom.xml"), COPY, "-DincludeScope=runtime"]
    for attempt in (1, 2, 3):
        # A registry that does not answer at once is asked again.
        done = subprocess.run([*command, f"-DoutputDirectory={LIB}"], stdout=sys.stderr)
        if done.returncode == 0:
            break
        if attempt == 3:
            sys.exit("peers: Maven cannot fetch Cassandra")
    wrong = set(sums(LIB)) ^ set(pinned.splitlines())
    if wrong:
        names = sorted({line.split()[1] for line in wrong})
        sys.exit(f"peers: jars that are not those of {PINNED.name}: {' '.join(names)}")
    stamp.write_text(pinned)


def compile_sources():
    """Compiles the programs of src/, when they have changed."""
    sources = sorted((HERE / "src").glob("*.java"))
    text = "".join(source.read_text() for source in sources)
    stamp = CLASSES / "compiled.java"
    if stamp.exists() and stamp.read_text() == text:
        return
    shutil.rmtree(CLASSES, ignore_errors=True)
    CLASSES.mkdir(parents=True)
    options = ["-proc:none", "-nowarn", "-cp", f"{LIB}/*", "-d", str(CLASSES)]
    if subprocess.run(["javac", *options, *map(str, sources)], stdout=sys.stderr).returncode:
        sys.exit("peers: the programs of src/ do not compile")
    stamp.write_text(text)


def java(flags, program, *arguments):
    """The command that runs a class of Cassandra, or of src/."""
    classpath = ["-cp", f"{CLASSES}:{LIB}/*"]
    return ["java", *modules(), *flags, *classpath, program, *map(str, arguments)]


# A tool's JVM lives for seconds: little memory, and no time for the optimising compiler.
BRIEF = ["-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8"]


def logback(path, level, file=None):
    """Writes a configuration of Cassandra's log: to a file, or to standard error."""
    kind, target = (
        ("FileAppender", f"<file>{file}</file>")
        if file
        else ("ConsoleAppender", "<target>System.err</target>")
    )
    path.write_text(
        f'<configuration><appender name="out" class="ch.qos.logback.core.{kind}">{target}'
        "<encoder><pattern>%-5level [%thread] %date{ISO8601} %logger{0} - "
            "%msg%n</pattern></encoder>"
        f'</appender><root level="{level}"><appender-ref ref="out"/></root></configuration>\n')


def yaml(value, indent=""):
    """A block of YAML of dictionaries, lists and strings."""
    if isinstance(value, dict):
        lines = ""
        for key, each in value.items():
            inner = isinstance(each, (dict, list))
            lines += (
                f"{indent}{key}:\n{yaml(each, indent + '  ')}"
                if inner
                else f"{indent}{key}: {each}\n"
            )
        return lines
    return "".join(
        (
            f"{indent}- " + yaml(each, indent + "  ").lstrip()
            if isinstance(each, (dict, list))
            else f"{indent}- {each}\n"
        )
        for each in value
    )
