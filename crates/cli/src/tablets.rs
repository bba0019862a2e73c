//! `messina admin move-tablet`, `add-replica`, `del-replica`, `cancel-move`, `balancing`: changes
//! of tablets' replicas.

use crate::Failure;
use crate::api::{self, Api, Method, query};
use clap::{Arg, ArgMatches, Command, value_parser};

/// The commands in this file.
pub fn commands() -> Vec<Command> {
    let argument = |name: &'static str, help: &'static str| Arg::new(name).required(true).help(help);
    let tablet = || {
        let token = argument("token", "A token of the tablet").allow_negative_numbers(true);
        [argument("keyspace", "The keyspace"), argument("table", "The table"), token.value_parser(value_parser!(i64))]
    };
    let to = || argument("to", "The address or host id of the node that gets the replica");
    let shard = || {
        let help = "The shard of that node; without it, the one with the fewest tablets";
        Arg::new("shard").long("shard").value_name("N").value_parser(value_parser!(u16)).help(help)
    };
    let from = || argument("from", "The address or host id of the node that loses the replica");
    vec![
        Command::new("move-tablet")
            .about("Moves a replica of a tablet to another node, or to another shard of its node (--shard), and waits until it is there")
            .args(tablet())
            .args([from(), to(), shard()]),
        Command::new("add-replica")
            .about("Adds a replica of a tablet on a node, and waits until it is complete")
            .args(tablet())
            .args([to(), shard()]),
        Command::new("cancel-move")
            .about(
                "Cancels the move of a tablet, or the addition or removal of a replica: its replicas stay where they \
                 were. If balancing is on, another move may begin",
            )
            .args(tablet()),
        Command::new("balancing")
            .about("Shows or sets whether tablets move by themselves to nodes that have fewer")
            .arg(Arg::new("switch").value_parser(["on", "off"])),
        Command::new("del-replica").about("Removes a replica of a tablet from a node").args(tablet()).arg(from()),
    ]
}

/// Whether a command is in this file.
pub fn is_command(name: &str) -> bool {
    commands().iter().any(|command| command.get_name() == name)
}

/// Runs one of these commands.
pub fn run(api: &Api, name: &str, arguments: &ArgMatches, as_json: bool) -> Result<(), Failure> {
    let text = |name: &str| api::text(arguments, name);
    if name == "balancing" {
        return balancing(api, text("switch"), as_json);
    }
    let token = arguments.get_one::<i64>("token").copied().unwrap_or_default().to_string();
    let shard = arguments.try_get_one::<u16>("shard").ok().flatten().map(u16::to_string).unwrap_or_default();
    let mut values = vec![("ks", text("keyspace")), ("table", text("table")), ("token", &token)];
    const MOVE: &str = "/storage_service/tablets/move";
    let (method, path) = match name {
        "move-tablet" => {
            values.extend([("src_host", text("from")), ("dst_host", text("to")), ("dst_shard", &shard)]);
            (Method::Post, MOVE)
        }
        "cancel-move" => (Method::Delete, MOVE),
        "add-replica" => {
            values.extend([("dst_host", text("to")), ("dst_shard", &shard)]);
            (Method::Post, "/storage_service/tablets/add_replica")
        }
        _ => {
            values.push(("host", text("from")));
            (Method::Post, "/storage_service/tablets/del_replica")
        }
    };
    let answer = api.send(method, &format!("{path}{}", query(&values)))?;
    crate::output::print_answer(&answer, as_json, |_| String::new());
    Ok(())
}

fn balancing(api: &Api, switch: &str, as_json: bool) -> Result<(), Failure> {
    const PATH: &str = "/storage_service/tablets/balancing";
    let answer = match switch {
        "" => api.get(PATH)?,
        switch => api.send(Method::Post, &format!("{PATH}?enabled={}", switch == "on"))?,
    };
    crate::output::print_answer(&answer, as_json, |answer| match answer.as_bool() {
        Some(is_on) => if is_on { "on\n" } else { "off\n" }.to_owned(),
        None => String::new(),
    });
    Ok(())
}
