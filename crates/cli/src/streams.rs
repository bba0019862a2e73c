//! `messina admin netstats`, `getstreamthroughput`, `setstreamthroughput`: the tablets that a node
//! sends and receives, and the limit of their rate.

use crate::Failure;
use crate::api::{Api, Method, query};
use crate::nodestatus::size;
use crate::output::plain_text;
use clap::{Arg, ArgMatches, Command, value_parser};
use serde_json::{Value, json};
use std::fmt::Write;

const THROUGHPUT: &str = "/storage_service/stream_throughput";

/// The commands in this file.
pub fn commands() -> Vec<Command> {
    let limit = Arg::new("limit").required(true).value_parser(value_parser!(u32));
    vec![
        Command::new("netstats").about("Shows the mode of the node, and the tablets that it sends and receives"),
        Command::new("getstreamthroughput").about("Shows the limit of the rate at which the node streams tablets"),
        Command::new("setstreamthroughput")
            .about("Sets the limit of the rate at which the node streams tablets, until the node stops")
            .arg(limit.help("In MiB per second; 0 for no limit")),
    ]
}

/// Whether a command is in this file.
pub fn is_command(name: &str) -> bool {
    commands().iter().any(|command| command.get_name() == name)
}

/// Runs one of these commands.
pub fn run(api: &Api, name: &str, arguments: &ArgMatches, as_json: bool) -> Result<(), Failure> {
    let (answer, shown): (Value, fn(&Value) -> String) = match name {
        "netstats" => {
            let (mode, streams) = (api.get("/storage_service/operation_mode")?, api.get("/stream_manager/")?);
            (json!({ "mode": mode, "streams": streams }), streams_text)
        }
        "getstreamthroughput" => (api.get(THROUGHPUT)?, throughput_text),
        _ => {
            let limit = arguments.get_one::<u32>("limit").copied().unwrap_or_default().to_string();
            (api.send(Method::Post, &format!("{THROUGHPUT}{}", query(&[("value", &limit)])))?, |_| String::new())
        }
    };
    crate::output::print_answer(&answer, as_json, shown);
    Ok(())
}

fn throughput_text(limit: &Value) -> String {
    match limit.as_u64() {
        Some(0) => "Current stream throughput: unlimited\n".to_owned(),
        _ => format!("Current stream throughput: {} MiB/s\n", plain_text(limit)),
    }
}

fn streams_text(answer: &Value) -> String {
    let mut out = format!("Mode: {}\n", plain_text(&answer["mode"]));
    let streams = answer["streams"].as_array().map(Vec::as_slice).unwrap_or_default();
    if streams.is_empty() {
        out.push_str("Not sending or receiving any tablets.\n");
    }
    for stream in streams {
        let session = &stream["sessions"][0];
        let incoming = session["receiving_files"][0]["value"].as_object();
        let (words, file) = match incoming {
            Some(_) => ("Receiving from", &session["receiving_files"][0]["value"]),
            None => ("Sending to", &session["sending_files"][0]["value"]),
        };
        let number = |name: &str| file[name].as_u64().unwrap_or_default();
        let (done, total) = (number("current_bytes"), number("total_bytes"));
        let (peer, name) = (plain_text(&session["peer"]), plain_text(&file["file_name"]));
        let shard = &stream["shard"];
        let failure = stream["last_failure"].as_str().map(|why| format!(", failed and is retried: {why}"));
        let failure = failure.unwrap_or_default();
        let _ = match stream["as_mutations"].as_bool() {
            Some(true) => writeln!(out, "{words} {peer}: {name}, shard {shard}: {} as mutations{failure}", size(done)),
            _ => {
                let percent = (done * 100).checked_div(total).unwrap_or(100);
                writeln!(
                    out,
                    "{words} {peer}: {name}, shard {shard}: {} of {} ({percent} %){failure}",
                    size(done),
                    size(total)
                )
            }
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_shown_a_line_each() {
        let file = |done: u64, total: u64| json!([{ "value": { "file_name": "ks.t tablet 3", "current_bytes": done, "total_bytes": total } }]);
        let session = |incoming: Value, outgoing: Value| json!([{ "peer": "127.0.0.2", "receiving_files": incoming, "sending_files": outgoing }]);
        let streams = json!([
            { "shard": 1, "as_mutations": false, "sessions": session(file(1 << 20, 4 << 20), json!([])) },
            { "shard": 0, "as_mutations": true, "sessions": session(json!([]), file(2 << 20, 2 << 20)) },
        ]);
        assert_eq!(
            streams_text(&json!({ "mode": "NORMAL", "streams": streams })),
            "Mode: NORMAL\n\
             Receiving from 127.0.0.2: ks.t tablet 3, shard 1: 1.00 MiB of 4.00 MiB (25 %)\n\
             Sending to 127.0.0.2: ks.t tablet 3, shard 0: 2.00 MiB as mutations\n"
        );
        let none = streams_text(&json!({ "mode": "LEAVING", "streams": [] }));
        assert_eq!(none, "Mode: LEAVING\nNot sending or receiving any tablets.\n");
        assert_eq!(throughput_text(&json!(0)), "Current stream throughput: unlimited\n");
        assert_eq!(throughput_text(&json!(16)), "Current stream throughput: 16 MiB/s\n");
    }
}
