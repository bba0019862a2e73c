//! Commands of nodetool that are not implemented yet: the answer says what to do instead.

use crate::Failure;
use clap::{Arg, Command};

/// The commands, and what to do instead.
const COMMANDS: &[(&str, &str)] = &[(
    "repair",
    "to bring a node the writes that it missed, run `messina admin resync NODE`. To read all data of a node \
     again from its replicas, run `messina admin rebuild` on it. See docs/faults.md",
)];

/// The commands, which the help does not list.
pub fn commands() -> impl Iterator<Item = Command> {
    let others = || Arg::new("others").num_args(0..).trailing_var_arg(true).allow_hyphen_values(true);
    COMMANDS.iter().map(move |(name, _)| Command::new(*name).hide(true).arg(others()))
}

/// The error of a command, if it is one of these.
pub fn refusal(name: &str) -> Option<Failure> {
    let (name, instead) = COMMANDS.iter().find(|(known, _)| *known == name)?;
    Some(Failure::new(format!("{name} is not implemented yet: {instead}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_nodetool_say_what_to_do_instead() {
        for command in ["repair -pr ks", "repair"] {
            let words = ["messina", "admin"].into_iter().chain(command.split(' '));
            let matches = crate::command().try_get_matches_from(words).expect(command);
            let Err(Failure { why, .. }) = crate::admin::run(matches.subcommand().expect("admin").1) else {
                panic!("{command}")
            };
            assert!(why.contains("is not implemented yet: ") && why.contains("docs/"), "{command}: {why}");
        }
    }
}
