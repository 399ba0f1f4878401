//! The `sluice` command. Everything is in the library, where tests can reach it.

fn main() -> std::process::ExitCode {
    sluice_engine::cli::main()
}
