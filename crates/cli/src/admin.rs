//! `messina admin`: commands for a running node, through its REST interface.

use crate::api::{Api, Method, query, quoted};
use crate::{Failure, cluster, compactions, hot, node_ops, resync, streams, tablets, tasks, unsupported};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::Value;

/// The path that controls the ports for clients.
const NATIVE_TRANSPORT: &str = "/storage_service/native_transport";

/// The command.
pub fn command() -> Command {
    let keyspace = || Arg::new("keyspace").help("The keyspace; without it, all");
    let tables = || Arg::new("tables").num_args(0..).help("Tables of the keyspace; without them, all");
    let tag = || Arg::new("tag").long("tag").short('t').value_name("NAME").help("The snapshot's name");
    let on_tables =
        |name: &'static str, about: &'static str| Command::new(name).about(about).arg(keyspace()).arg(tables());
    let needed = || keyspace().required(true).help("The keyspace");
    Command::new("admin")
        .about("Administers a running node")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .arg(
            Arg::new("api")
                .long("api")
                .value_name("ADDRESS")
                .default_value("http://127.0.0.1:10000")
                .global(true)
                .help("The address or URL of the node's admin interface; the port is 10000 unless given"),
        )
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).global(true).help("Prints JSON"))
        .subcommand(Command::new("keyspaces").about("Lists keyspaces"))
        .subcommand(Command::new("tables").about("Lists tables"))
        .subcommand(on_tables("flush", "Writes memtables to sstables"))
        .subcommand(on_tables(
            "compact",
            "Flushes, then runs a major compaction: it leaves one sstable, one level, or one sstable per window",
        ))
        .subcommand(on_tables("snapshot", "Takes a snapshot: hard links to all sstables").arg(tag()))
        .subcommand(Command::new("listsnapshots").about("Lists snapshots"))
        .subcommand(
            on_tables("clearsnapshot", "Removes snapshots").arg(tag()).arg(
                Arg::new("all")
                    .long("all")
                    .action(ArgAction::SetTrue)
                    .conflicts_with("tag")
                    .help("Removes snapshots of every name"),
            ),
        )
        .subcommand(on_tables("tablestats", "Shows statistics of tables: sstables, disk space, memory, partitions"))
        .subcommand(
            Command::new("refresh")
                .about("Loads the sstables in the upload directory of a table")
                .arg(needed())
                .arg(Arg::new("table").required(true).help("The table")),
        )
        .subcommand(
            Command::new("autocompaction")
                .about("Enables or disables automatic compaction until the node stops")
                .arg(Arg::new("switch").required(true).value_parser(["enable", "disable"]))
                .arg(needed())
                .arg(tables()),
        )
        .subcommand(Command::new("enablebinary").about("Opens the ports for clients (CQL)"))
        .subcommand(Command::new("disablebinary").about("Closes the ports for clients (CQL) and their connections"))
        .subcommand(Command::new("statusbinary").about("Shows whether the ports for clients (CQL) are open"))
        .subcommand(
            Command::new("loglevel")
                .about("Shows or sets the log level of a module")
                .arg(Arg::new("module").required(true).help("The module, or root"))
                .arg(Arg::new("level").value_parser(["off", "error", "warn", "info", "debug", "trace"])),
        )
        .subcommands(cluster::commands())
        .subcommands(compactions::commands())
        .subcommand(hot::command())
        .subcommand(resync::command())
        .subcommands(node_ops::commands())
        .subcommands(streams::commands())
        .subcommands(tablets::commands())
        .subcommand(tasks::command())
        .subcommands(unsupported::commands())
}

/// Runs the selected command.
pub fn run(arguments: &ArgMatches) -> Result<(), Failure> {
    let Some((name, arguments)) = arguments.subcommand() else { return Ok(()) };
    if let Some(refused) = unsupported::refusal(name) {
        return Err(refused);
    }
    let text = |name: &str| arguments.get_one::<String>(name).map(String::as_str).unwrap_or_default();
    let api = Api::new(text("api"));
    let json = arguments.get_flag("json");
    if compactions::is_command(name) {
        return compactions::run(&api, name, arguments, json);
    }
    if cluster::is_command(name) {
        return cluster::run(&api, name, arguments, json);
    }
    if name == hot::NAME {
        return hot::run(&api, arguments, json);
    }
    if node_ops::is_command(name) {
        return node_ops::run(&api, name, arguments, json);
    }
    if tablets::is_command(name) {
        return tablets::run(&api, name, arguments, json);
    }
    if streams::is_command(name) {
        return streams::run(&api, name, arguments, json);
    }
    if name == tasks::NAME {
        return tasks::run(&api, arguments, json);
    }
    if name == resync::NAME {
        return resync::run(&api, arguments, json);
    }
    let answer = match name {
        "keyspaces" => api.get("/storage_service/keyspaces")?,
        "tables" => api.get("/column_family/name")?,
        "flush" | "compact" => {
            let (some, all) = match name {
                "flush" => ("/storage_service/keyspace_flush/", "/storage_service/flush"),
                _ => ("/storage_service/keyspace_compaction/", "/storage_service/compact"),
            };
            match text("keyspace") {
                "" => api.send(Method::Post, all)?,
                keyspace => api.send(Method::Post, &format!("{some}{}{}", quoted(keyspace), of_tables(arguments)))?,
            }
        }
        "snapshot" => {
            let name = match text("tag") {
                "" => millis_since_1970().to_string(),
                name => name.to_owned(),
            };
            let query = query(&[("tag", &name), ("kn", text("keyspace")), ("cf", &tables(arguments))]);
            api.send(Method::Post, &format!("/storage_service/snapshots{query}"))?;
            if json { Value::String(name) } else { Value::String(format!("took snapshot {name}")) }
        }
        "listsnapshots" => api.get("/storage_service/snapshots")?,
        "clearsnapshot" => {
            if text("tag").is_empty() && !arguments.get_flag("all") {
                return Err(Failure::new("name the snapshot (--tag NAME), or give --all"));
            }
            let snapshots = api.get("/storage_service/snapshots")?;
            let is_known = snapshots.as_array().into_iter().flatten().any(|one| one["key"] == text("tag"));
            if !text("tag").is_empty() && !is_known {
                return Err(Failure::new(format!("there is no snapshot {}", text("tag"))));
            }
            let query = query(&[("tag", text("tag")), ("kn", text("keyspace")), ("cf", &tables(arguments))]);
            api.send(Method::Delete, &format!("/storage_service/snapshots{query}"))?
        }
        "tablestats" => {
            let query = query(&[("ks", text("keyspace")), ("cf", &tables(arguments))]);
            let answer = api.get(&format!("/column_family/tablestats{query}"))?;
            crate::output::print_answer(&answer, json, crate::tablestats::text);
            return Ok(());
        }
        "enablebinary" => api.send(Method::Post, NATIVE_TRANSPORT)?,
        "disablebinary" => api.send(Method::Delete, NATIVE_TRANSPORT)?,
        "statusbinary" => {
            let open = api.get(NATIVE_TRANSPORT)?;
            let words = if open == Value::Bool(true) { "running" } else { "not running" };
            if json { open } else { Value::String(words.to_owned()) }
        }
        "refresh" => {
            let path = format!("/storage_service/sstables/{}", quoted(text("keyspace")));
            api.send(Method::Post, &format!("{path}{}", query(&[("cf", text("table"))])))?
        }
        "autocompaction" => {
            let method = if text("switch") == "enable" { Method::Post } else { Method::Delete };
            let path = format!("/storage_service/auto_compaction/{}{}", quoted(text("keyspace")), of_tables(arguments));
            api.send(method, &path)?
        }
        _ => {
            let path = format!("/system/logger/{}", quoted(text("module")));
            match text("level") {
                "" => api.get(&path)?,
                level => api.send(Method::Post, &format!("{path}{}", query(&[("level", level)])))?,
            }
        }
    };
    crate::output::print_answer(&answer, json, text_of);
    Ok(())
}

fn millis_since_1970() -> i64 {
    rt::time::wall_micros() / 1_000
}

fn tables(arguments: &ArgMatches) -> String {
    let names = arguments.get_many::<String>("tables").into_iter().flatten();
    names.map(String::as_str).collect::<Vec<_>>().join(",")
}

fn of_tables(arguments: &ArgMatches) -> String {
    query(&[("cf", &tables(arguments))])
}

/// An answer as text.
fn text_of(answer: &Value) -> String {
    match answer {
        Value::Null => String::new(),
        Value::Array(items) => items.iter().map(|item| line(item) + "\n").collect(),
        Value::Object(fields) => {
            let width = fields.keys().map(String::len).max().unwrap_or(0);
            fields.iter().map(|(key, value)| format!("{key:width$}  {}\n", line(value))).collect()
        }
        Value::String(text) => format!("{text}\n"),
        other => format!("{other}\n"),
    }
}

fn line(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(fields) if fields.contains_key("key") && fields.contains_key("value") => {
            let tables = fields["value"].as_array().map(Vec::as_slice).unwrap_or_default();
            let tables: Vec<String> = tables
                .iter()
                .map(|table| format!("{}.{} ({} bytes)", line(&table["ks"]), line(&table["cf"]), table["total"]))
                .collect();
            format!("{}: {}", line(&fields["key"]), tables.join(", "))
        }
        other => other.to_string(),
    }
}
