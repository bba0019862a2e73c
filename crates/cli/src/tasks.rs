//! `messina admin tasks`: work that takes time. The subcommands are those of ScyllaDB's nodetool.

use crate::Failure;
use crate::api::{self, Api, Method, query, quoted};
use crate::columns;
use crate::failure::TIMED_OUT;
use crate::output::{plain_text, print_answer};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::Value;
use std::fmt::Write;

/// The name of the command.
pub const NAME: &str = "tasks";

/// The columns of a list: the names of the fields that they show.
const COLUMNS: [&str; 9] =
    ["task_id", "type", "kind", "state", "keyspace", "table", "entity", "start_time", "waits_for"];

/// The exit statuses of `wait` if the task failed, and if its result is not known.
const TASK_FAILED: u8 = 123;
const UNKNOWN: u8 = 125;
const EXIT_STATUSES: &str = "Exit status: 0 the task succeeded, 123 it failed, 124 it is still running after the timeout, 125 its result is not known";

/// The command.
pub fn command() -> Command {
    let id = || Arg::new("id").required(true).help("The id of the task");
    let option = |name: &'static str, help: &'static str| Arg::new(name).long(name).value_name("NAME").help(help);
    Command::new(NAME)
        .about("Shows, awaits or aborts work that takes time")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(Command::new("modules").about("Lists the modules of the node that have tasks"))
        .subcommand(
            Command::new("list")
                .about("Lists the tasks of a module, or of all")
                .arg(Arg::new("module").help("The module; without it, all"))
                .args([option("keyspace", "Only tasks of this keyspace"), option("table", "Only tasks of this table")]),
        )
        .subcommand(Command::new("status").about("Shows a task").arg(id()))
        .subcommand(
            Command::new("wait")
                .about("Waits until a task has ended, and shows it")
                .after_help(EXIT_STATUSES)
                .arg(id())
                .arg(
                    Arg::new("quiet")
                        .long("quiet")
                        .short('q')
                        .action(ArgAction::SetTrue)
                        .help("Prints nothing: the exit status has the result"),
                )
                .arg(
                    Arg::new("timeout")
                        .long("timeout")
                        .value_name("SECONDS")
                        .value_parser(value_parser!(u32))
                        .help("Fails if the task is still running then"),
                ),
        )
        .subcommand(Command::new("abort").about("Aborts a task that can be aborted").arg(id()))
}

/// Runs one of the subcommands.
pub fn run(api: &Api, arguments: &ArgMatches, as_json: bool) -> Result<(), Failure> {
    let Some((name, arguments)) = arguments.subcommand() else { return Ok(()) };
    let text = |name: &str| api::text(arguments, name);
    let of_task = |path: &str| format!("/task_manager/{path}/{}", quoted(text("id")));
    match name {
        "modules" => print_answer(&api.get("/task_manager/list_modules")?, as_json, modules_text),
        "list" => {
            let modules = match text("module") {
                "" => names(&api.get("/task_manager/list_modules")?),
                module => vec![module.to_owned()],
            };
            let filter = query(&[("keyspace", text("keyspace")), ("table", text("table"))]);
            let mut tasks = Vec::new();
            for module in modules {
                let answer = api.get(&format!("/task_manager/list_module_tasks/{}{filter}", quoted(&module)))?;
                tasks.extend(answer.as_array().cloned().unwrap_or_default());
            }
            print_answer(&Value::Array(tasks), as_json, list_text);
        }
        "status" => print_answer(&api.get(&of_task("task_status"))?, as_json, status_text),
        "wait" => {
            let timeout = arguments.get_one::<u32>("timeout").map(u32::to_string).unwrap_or_default();
            let path = format!("{}{}", of_task("wait_task"), query(&[("timeout", &timeout)]));
            let quiet = arguments.get_flag("quiet");
            let ended = api.get_when_done(&path);
            if let Ok(task) = &ended
                && !quiet
            {
                print_answer(task, as_json, status_text);
            }
            return waited(ended, quiet);
        }
        _ => print_answer(&api.send(Method::Post, &of_task("abort_task"))?, as_json, |_| String::new()),
    }
    Ok(())
}

/// The result of a wait, with the exit statuses of ScyllaDB's nodetool.
fn waited(ended: Result<Value, Failure>, quiet: bool) -> Result<(), Failure> {
    let failure = match ended {
        Ok(task) if task["state"] == "done" => return Ok(()),
        Ok(task) => {
            Failure { why: format!("the task failed: {}", plain_text(&task["error"])), exit_status: TASK_FAILED }
        }
        Err(failure) if failure.exit_status == TIMED_OUT => failure,
        Err(failure) => Failure { exit_status: UNKNOWN, ..failure },
    };
    Err(if quiet { Failure { why: String::new(), ..failure } } else { failure })
}

fn names(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().map(plain_text).collect()
}

fn modules_text(modules: &Value) -> String {
    names(modules).into_iter().map(|name| name + "\n").collect()
}

fn list_text(tasks: &Value) -> String {
    let of_task = |task: &Value| COLUMNS.map(|field| task[field].as_str().unwrap_or_default().to_owned());
    let header = COLUMNS.map(str::to_owned);
    let lines: Vec<_> = [header].into_iter().chain(tasks.as_array().into_iter().flatten().map(of_task)).collect();
    let mut out = String::new();
    columns::append(&mut out, &lines, "  ", |_| false);
    out
}

/// A line for each field that has a value.
fn status_text(task: &Value) -> String {
    let mut out = String::new();
    for (field, value) in task.as_object().into_iter().flatten() {
        let text = if value.is_null() { String::new() } else { plain_text(value) };
        if !text.is_empty() {
            // Writing into a string cannot fail.
            let _ = writeln!(out, "{field}: {text}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tasks_are_lines_with_columns() {
        let task =
            json!({ "task_id": "1", "type": "decommission", "kind": "cluster", "state": "running", "entity": "h" });
        assert_eq!(
            list_text(&json!([task])),
            "task_id  type          kind     state    keyspace  table  entity  start_time  waits_for\n\
             1        decommission  cluster  running                   h\n"
        );
    }

    #[test]
    fn the_exit_status_has_the_end_of_a_task() {
        let status = |ended| waited(ended, true).map_err(|failure| (failure.exit_status, failure.why));
        assert_eq!(status(Ok(json!({ "state": "done" }))), Ok(()));
        assert_eq!(status(Ok(json!({ "state": "failed", "error": "full" }))), Err((123, String::new())));
        assert_eq!(status(Err(Failure { why: "late".into(), exit_status: TIMED_OUT })), Err((124, String::new())));
        assert_eq!(status(Err(Failure::new("no such task"))), Err((125, String::new())));
        let shown = waited(Ok(json!({ "state": "failed", "error": "full" })), false).expect_err("it failed");
        assert_eq!(shown.why, "the task failed: full");
    }

    #[test]
    fn a_status_has_a_line_for_each_value() {
        assert_eq!(status_text(&json!({ "id": "1", "error": "", "shard": 0, "waits_for": null })), "id: 1\nshard: 0\n");
    }
}
