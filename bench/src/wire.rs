//! A raw client of version 4 of the protocol, for programs that load a server: it does no more than
//! they need, and blocks.

use std::io::{self, Read, Write};
use std::net::TcpStream;

/// The port of a node for clients.
const PORT: u16 = 9042;
/// The connections that are made to reach a shard.
const CONNECTS: usize = 256;
/// Bytes of the header of a frame.
pub const HEADER: usize = 9;

/// Opcodes.
#[allow(missing_docs)]
pub mod opcode {
    pub const ERROR: u8 = 0x00;
    pub const STARTUP: u8 = 0x01;
    pub const READY: u8 = 0x02;
    pub const OPTIONS: u8 = 0x05;
    pub const QUERY: u8 = 0x07;
    pub const RESULT: u8 = 0x08;
    pub const PREPARE: u8 = 0x09;
    pub const EXECUTE: u8 = 0x0A;
}

/// The flag of a frame with a custom payload.
pub const HAS_PAYLOAD: u8 = 0x04;

/// A frame from the server.
#[derive(Debug)]
pub struct Response {
    /// Its flags.
    pub flags: u8,
    /// The stream of its request.
    pub stream: u16,
    /// Its opcode.
    pub opcode: u8,
    /// What follows the header.
    pub body: Vec<u8>,
}

/// A frame for the server.
pub fn frame(stream: u16, opcode: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![4, 0];
    frame.extend(stream.to_be_bytes());
    frame.push(opcode);
    frame.extend((body.len() as u32).to_be_bytes());
    frame.extend(body);
    frame
}

/// Reads a frame from the server.
pub fn receive(mut stream: &TcpStream) -> io::Result<Response> {
    let mut head = [0; HEADER];
    stream.read_exact(&mut head)?;
    let mut body = vec![0; u32::from_be_bytes([head[5], head[6], head[7], head[8]]) as usize];
    stream.read_exact(&mut body)?;
    Ok(Response { flags: head[1], stream: u16::from_be_bytes([head[2], head[3]]), opcode: head[4], body })
}

/// A started connection. Its functions panic on what a load cannot continue without.
pub struct Client(pub TcpStream);

impl Client {
    /// Connects to the host and sends STARTUP with these options.
    pub fn connect(host: &str, options: &[(&str, &str)]) -> Client {
        let stream = TcpStream::connect((host, PORT)).unwrap_or_else(|error| panic!("{host}: {error}"));
        stream.set_nodelay(true).expect("no delay");
        let mut client = Client(stream);
        let pairs = [("CQL_VERSION", "3.0.0")].iter().chain(options);
        let mut body = (1 + options.len() as u16).to_be_bytes().to_vec();
        for text in pairs.flat_map(|(key, value)| [key, value]) {
            body.extend((text.len() as u16).to_be_bytes());
            body.extend(text.as_bytes());
        }
        let response = client.ask(opcode::STARTUP, &body);
        assert_eq!(response.opcode, opcode::READY, "{}", String::from_utf8_lossy(&response.body));
        client
    }

    /// Connects to a shard of the host, with the number that the server gives it. The server
    /// spreads connections over its shards, so a few attempts reach each of them.
    pub fn connect_to_shard(host: &str, shard: u32, options: &[(&str, &str)]) -> Client {
        // Kept open until the shard is reached, so that the next connection goes elsewhere.
        let mut others = Vec::new();
        for _ in 0..CONNECTS {
            let mut client = Client::connect(host, options);
            if client.shard().0 == shard {
                return client;
            }
            others.push(client);
        }
        panic!("{host}: no connection to shard {shard}");
    }

    /// Sends a request and waits for its response.
    pub fn ask(&mut self, opcode: u8, body: &[u8]) -> Response {
        self.0.write_all(&frame(0, opcode, body)).expect("sent");
        receive(&self.0).expect("a response")
    }

    /// Sends a statement with what follows its text. Its result.
    fn statement(&mut self, opcode: u8, text: &str, rest: &[u8]) -> Vec<u8> {
        let body = [&(text.len() as u32).to_be_bytes()[..], text.as_bytes(), rest].concat();
        let response = self.ask(opcode, &body);
        assert_eq!(response.opcode, opcode::RESULT, "{text}: {}", String::from_utf8_lossy(&response.body));
        response.body
    }

    /// Executes a statement at level ONE.
    pub fn query(&mut self, text: &str) {
        self.statement(opcode::QUERY, text, &[0, 1, 0]);
    }

    /// The id of a prepared statement, with its length.
    pub fn prepare(&mut self, text: &str) -> Vec<u8> {
        let result = self.statement(opcode::PREPARE, text, &[]);
        let len = u16::from_be_bytes([result[4], result[5]]);
        result[4..6 + usize::from(len)].to_vec()
    }

    /// The shard that serves this connection, and the number of the node's shards. A server without
    /// shards counts as one.
    pub fn shard(&mut self) -> (u32, u32) {
        let supported = self.ask(opcode::OPTIONS, &[]).body;
        let number = |name| option(&supported, name).and_then(|value| value.parse().ok());
        (number("SCYLLA_SHARD").unwrap_or(0), number("SCYLLA_NR_SHARDS").unwrap_or(1))
    }
}

/// The first value of an option of SUPPORTED.
fn option(supported: &[u8], name: &str) -> Option<String> {
    let mut rest = supported;
    for _ in 0..number(&mut rest)? {
        let key = text(&mut rest)?;
        let mut first = None;
        for _ in 0..number(&mut rest)? {
            let value = text(&mut rest)?;
            first = first.or(Some(value));
        }
        if key == name.as_bytes() {
            return first.map(|value| String::from_utf8_lossy(value).into_owned());
        }
    }
    None
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(len)?;
    *rest = left;
    Some(taken)
}

fn number(rest: &mut &[u8]) -> Option<usize> {
    take(rest, 2).map(|bytes| usize::from(u16::from_be_bytes([bytes[0], bytes[1]])))
}

fn text<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = number(rest)?;
    take(rest, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_multimap() {
        let supported = b"\0\x02\0\x01A\0\x02\0\x01x\0\x01y\0\x02BB\0\x01\0\x0217";
        assert_eq!(option(supported, "A").as_deref(), Some("x"));
        assert_eq!(option(supported, "BB").as_deref(), Some("17"));
        assert_eq!(option(supported, "C"), None);
        assert_eq!(option(&supported[..9], "BB"), None);
    }
}
