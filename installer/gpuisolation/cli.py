"""The command line: `gpu-isolation-installer preflight`, `install`, `policy`, `status`, `upgrade`, `uninstall`."""

import argparse
import json
import logging
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gpuagent.host import cgpu_proc
from gpuagent.system.command_line import CommandLine
from gpuisolation import cgpu_policy, layer, preflight_checks, show, status
from gpuisolation.cgpu_policy import NewSettings
from gpuisolation.change import package
from gpuisolation.change.change_lock import ChangeLock, Waiting
from gpuisolation.change.changer import Changer
from gpuisolation.change.package import Package
from gpuisolation.errors import InstallerError, RefusedError, UsageError
from gpuisolation.host import facts, mps_servers
from gpuisolation.host.files import Files
from gpuisolation.host.root import Host
from gpuisolation.preflight_checks import LayerKind, Question, Row

log = logging.getLogger(__name__)

EPILOG = "Exit codes: 0 success, 1 error, 2 usage error, 3 refused (a check forbids it, or containers use the GPUs)."
EXAMPLES = (
    "gpu-isolation-installer preflight --package cgpu-1.5.10.tar.gz",
    "gpu-isolation-installer install --package cgpu-1.5.10.tar.gz --policy 3",
    "gpu-isolation-installer status",
)
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}

LEVELS = ("debug", "info", "warning", "error")

MakeHost = Callable[[Path], tuple[Host, Files]]


def make_host(root: Path) -> tuple[Host, Files]:
    host = Host(root)
    return host, Files(host)


def run(arguments: Sequence[str], make: MakeHost = make_host) -> int:
    """Run one command; the exit code: 0 success, 1 error, 2 usage error, 3 refused."""
    options = make_parser().parse_args(arguments)
    _log_to_stderr(options.log_level)
    try:
        if not options.root.is_dir():
            raise UsageError(f"--root {options.root}: no such folder")
        host, files = make(options.root)
        code: int = options.command(options, host, files)
    except InstallerError as err:
        print(f"gpu-isolation-installer: {err}", file=sys.stderr)
        return err.code
    except BrokenPipeError:  # of the output: `gpuagent.system.output` ends the program
        raise
    except PermissionError as err:
        print(f"gpu-isolation-installer: {err.filename}: {err.strerror}: run it as root", file=sys.stderr)
        return 1
    except OSError as err:
        where = err.filename or "the host"
        print(
            f"gpu-isolation-installer: {where}: {err.strerror}; fix that and run it again to continue", file=sys.stderr
        )
        return 1
    return code


def make_parser() -> CommandLine:
    parser = CommandLine(
        prog="gpu-isolation-installer",
        description="Checks, installs, sets, upgrades and removes the GPU isolation layer of a node.",
        epilog=EPILOG,
        examples=EXAMPLES,
    )
    parser.add_version("gpu-isolation-installer")
    commands = parser.add_commands()

    def command(name: str, does: str, function: Callable[[argparse.Namespace, Host, Files], int]) -> CommandLine:
        sub = commands.add_parser(name, help=does, description=f"{does}.", epilog=EPILOG)
        sub.set_defaults(command=function)
        sub.add_argument("--root", type=Path, default=Path("/"), metavar="DIR", help="the host's root (default: /)")
        sub.add_argument(
            "--log-level",
            choices=LEVELS,
            default="info",
            metavar="LEVEL",
            help=f"lowest severity that is logged: {', '.join(LEVELS)} (default: info)",
        )
        sub.add_argument("--dry-run", action="store_true", help="show what would be done, and change nothing")
        return sub

    preflight = command("preflight", "Check whether the node can take the layer", _preflight)
    _output(preflight)
    preflight.add_argument(
        "--layer",
        type=LayerKind,
        choices=list(LayerKind),
        default=LayerKind.CGPU,
        help="layer to check for (default: cgpu)",
    )
    _package(preflight)
    _ignore(preflight)
    _accept(preflight)

    for name, does, function in (
        ("install", "Put the layer on the node; a node that has one is left as it is", _install),
        ("upgrade", "Put another version in place of the node's layer", _upgrade),
    ):
        sub = command(name, does, function)
        _package(sub)
        sub.add_argument(
            "--policy", type=_policy_number, metavar="POLICY", help="cGPU's policy for every GPU (default: 5)"
        )
        _ignore(sub)
        _accept(sub)
        _wait(sub)

    uninstall = command("uninstall", "Take the layer off the node, and put back what was there before", _uninstall)
    _ignore(uninstall)
    _wait(uninstall)

    setting = command("policy", "Show cGPU's policies, or set them", _policy)
    _output(setting)
    names = ", ".join(f"{p.number} {p.name}" for p in cgpu_proc.POLICIES.values())
    setting.add_argument("--set", type=_policy_number, metavar="POLICY", help=f"policy to set: {names}")
    setting.add_argument("--max-inst", type=int, metavar="N", help="most containers on a GPU")
    setting.add_argument(
        "--weight",
        type=_weight,
        action="append",
        default=[],
        metavar="INSTANCE=N",
        help="weight of an instance, that is, of a container on a GPU; repeatable",
    )
    setting.add_argument(
        "--gpu",
        type=int,
        action="append",
        default=[],
        metavar="INDEX",
        help="GPU to change, by index; repeatable (default: every GPU)",
    )

    shown = command("status", "Show the layer: version, policies, instances, memory caps and use", _status)
    _output(shown)
    shown.add_argument(
        "--mps-pipe-dir",
        metavar="DIR",
        help=f"pipe directory of MPS's daemon (default: the first that answers of {', '.join(mps_servers.PIPE_DIRS)})",
    )
    return parser


def _output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", choices=["table", "json", "yaml"], default="table", help="output format (default: table)"
    )


def _package(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--package", type=Path, metavar="PATH", help="folder, tar or image layer with cGPU; not below --root"
    )
    parser.add_argument(
        "--sha256",
        metavar="HASH",
        help="SHA-256 of the tar or layer, or of a folder's file SHA256SUMS (optional there)",
    )


def _ignore(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="NAME",
        help="name of a process that may stay on the GPUs, such as a monitor; repeatable",
    )


def _accept(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--accept",
        action="append",
        default=[],
        choices=[name for name in preflight_checks.CHECKS if name not in preflight_checks.NEVER_ACCEPTED],
        metavar="CHECK",
        help="continue although this check fails; repeatable",
    )


def _wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wait",
        type=_seconds,
        nargs="?",
        const=math.inf,
        default=0.0,
        metavar="SECONDS",
        help="wait until no container uses a GPU, at most SECONDS if given; does not cordon or drain the node",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def _policy_number(text: str) -> int:
    try:
        return cgpu_policy.parse(text)
    except ValueError as err:
        raise argparse.ArgumentTypeError(str(err)) from err


def _weight(text: str) -> tuple[str, int]:
    name, _, weight = text.partition("=")
    if not name or not weight.isascii() or not weight.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: wanted INSTANCE=N, like 0123456789ab=4")
    return name, int(weight)


def _preflight(options: argparse.Namespace, host: Host, _: Files) -> int:
    rows, forbidding = _checked(options, host, options.layer)
    if options.output == "table":
        print(show.checks(rows, forbidding))
    else:
        print(show.checks_document(rows, forbidding, options.output))
    return RefusedError.code if forbidding else 0


def _checked(options: argparse.Namespace, host: Host, kind: LayerKind) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    host_facts = facts.read(host)
    version = None
    modules = ""
    if options.package:
        with tempfile.TemporaryDirectory() as folder:
            supplied = package.unpack(options.package, options.sha256, Path(folder) / "package")
            version = supplied.version
            modules = _module_source(supplied, host_facts.kernel)
    question = Question(facts=host_facts, layer=kind, version=version, modules=modules, ignore=options.ignore)
    rows = preflight_checks.rows(question)
    return rows, preflight_checks.forbidding(rows, options.accept)


def _module_source(supplied: Package, kernel: str) -> str:
    """Where the modules for the kernel come from, as `Question` names it."""
    if supplied.modules(kernel):
        return "package"
    return "build" if supplied.builds else "nowhere"


def _install(options: argparse.Namespace, host: Host, files: Files) -> int:
    changer = _changer(options, host, files)
    with changer.lock.alone(dry_run=options.dry_run):
        old = layer.recorded(host)
        if options.package is None:
            if old is None:
                raise UsageError(
                    "--package is needed: nothing is installed on this node, and this program ships no package"
                )
            print(changer.load_again(old, dry_run=options.dry_run))
            return 0
        if layer.present(host, files) is None:
            _must_pass(options, host)
        return _put(options, changer, upgrade=False)


def _upgrade(options: argparse.Namespace, host: Host, files: Files) -> int:
    changer = _changer(options, host, files)
    if options.package is None:
        raise UsageError("--package is needed: the version to upgrade to")
    with changer.lock.alone(dry_run=options.dry_run):
        if layer.present(host, files) is None:
            raise RefusedError("there is no layer to upgrade on this node: run install")
        _must_pass(options, host)
        return _put(options, changer, upgrade=True)


def _must_pass(options: argparse.Namespace, host: Host) -> None:
    """Refuse where a check forbids it; users of GPUs are checked later, as the change can wait for them."""
    rows, forbidding = _checked(options, host, LayerKind.CGPU)
    refusing = [row for row in forbidding if row.check != "users"]
    for row in rows:
        log.log(
            logging.ERROR if row in refusing else logging.INFO,
            "Checked",
            extra={"check": row.check, "verdict": str(row.verdict), "found": row.found},
        )
    if refusing:
        lines = "\n".join(f"  {row.check}: {row.found}; wanted {row.wanted}. {row.todo}" for row in refusing)
        raise RefusedError(
            f"the node cannot take the layer:\n{lines}\nTo continue although a check fails: --accept CHECK"
        )


def _put(options: argparse.Namespace, changer: Changer, *, upgrade: bool) -> int:
    with changer.unpacked(options.package, options.sha256, dry_run=options.dry_run) as supplied:
        print(changer.put(supplied, policy=options.policy, dry_run=options.dry_run, upgrade=upgrade))
    return 0


def _uninstall(options: argparse.Namespace, host: Host, files: Files) -> int:
    changer = _changer(options, host, files)
    with changer.lock.alone(dry_run=options.dry_run):
        print(changer.remove(dry_run=options.dry_run))
    return 0


def _policy(options: argparse.Namespace, host: Host, files: Files) -> int:
    new = NewSettings(gpus=options.gpu, policy=options.set, max_inst=options.max_inst, weights=dict(options.weight))
    if options.gpu and not new:
        raise UsageError("--gpu says where to set something; say what with --set, --max-inst or --weight")
    if new:
        with ChangeLock(host, files).alone(dry_run=options.dry_run):
            print(cgpu_policy.change(host, files, new, dry_run=options.dry_run))
    state = cgpu_proc.read(host.at(cgpu_proc.CGPU_PROC))
    if state is None:
        raise InstallerError(cgpu_proc.problem(state) or "")
    if options.output == "table":
        print(cgpu_policy.table(state))
    else:
        print(show.document(cgpu_policy.page(state), options.output))
    return 0


def _status(options: argparse.Namespace, host: Host, files: Files) -> int:
    pipe_dirs = [options.mps_pipe_dir] if options.mps_pipe_dir else mps_servers.PIPE_DIRS
    page = status.page(host, files, pipe_dirs)
    print(status.render(page) if options.output == "table" else show.document(page, options.output))
    return 0


def _changer(options: argparse.Namespace, host: Host, files: Files) -> Changer:
    return Changer(ChangeLock(host, files, Waiting(wait_s=options.wait, ignore=options.ignore, sleep=time.sleep)))


def _log_to_stderr(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Fields())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)


class _Fields(logging.Formatter):
    """``2026-01-31T12:00:00Z INFO    step number=1/9 does="put /etc/cgpu.conf"``: as the agent's lines look."""

    def format(self, record: logging.LogRecord) -> str:
        fields = [_field(key, value) for key, value in record.__dict__.items() if key not in _STANDARD]
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        return " ".join([stamp, f"{record.levelname:<7}", record.getMessage(), *fields]).rstrip()


def _field(key: str, value: object) -> str:
    return f"{key}={json.dumps(str(value), ensure_ascii=False)}"
