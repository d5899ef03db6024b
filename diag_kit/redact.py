"""Names, addresses and secrets out of a report, each by an alias that stays the same throughout it.

``host-1`` is the same machine wherever it stands, so that a failed node can still be told from the others. Texts are
first shown to `Redactor.learn`, since a name is often told apart in one place (``host : gpu12``) and used in another.
What a diagnosis lives on stays: sizes, versions, times, ranks, module paths, file names. Where a name is also an
ordinary word, it is replaced only where its place in the line says that it is a name.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

KINDS = {"host": ("host name", "host names"), "user": ("account name", "account names"),
         "ip": ("IP address", "IP addresses"), "email": ("e-mail address", "e-mail addresses"),
         "secret": ("token, key or password", "tokens, keys or passwords")}  # fmt: skip

# Secrets: by their own shape, or by the name that they are given.
_KEY_BLOCK = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_KEY_LINE = re.compile(r"^\s*(?=.*[a-z])(?=.*[A-Z])(?=.*\d)[A-Za-z0-9+/]{60,76}={0,2}\s*$", re.MULTILINE)
_TOKEN = re.compile(
    r"""(?<![A-Za-z0-9])(?: hf_[A-Za-z0-9]{16,} | sk-(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{16,} | (?:AKIA|ASIA)[A-Z0-9]{16}
            | gh[pousr]_[A-Za-z0-9]{20,} | github_pat_[A-Za-z0-9_]{20,} | glpat-[A-Za-z0-9_-]{16,}
            | xox[abeprs]-[A-Za-z0-9-]{10,} | xapp-[A-Za-z0-9-]{10,} | AIza[A-Za-z0-9_-]{30,}
            | wandb_v1_[A-Za-z0-9_-]{20,} | npm_[A-Za-z0-9]{20,} | r8_[A-Za-z0-9]{20,} | gsk_[A-Za-z0-9]{20,}
            | [rsp]k_(?:live|test)_[A-Za-z0-9]{10,} | nvapi-[A-Za-z0-9_-]{20,} | pypi-AgE[A-Za-z0-9_-]{20,}
            | dop_v1_[0-9a-f]{20,} | ya29\.[A-Za-z0-9_-]{20,} | \d{6,12}:AA[A-Za-z0-9_-]{20,}
            | https://(?:[a-z]{1,10}\.)?discord(?:app)?\.com/api/(?:v\d+/)?webhooks/[^\s"'<>]{1,400}
            | https://hooks\.slack(?:-gov)?\.com/[^\s"'<>]{1,400}
            | eyJ[A-Za-z0-9_+/-]{16,}={0,2}(?:\.[A-Za-z0-9_-]+){0,4}
            | eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]* )""",
    re.VERBOSE,
)
_VALUE = r"(\"[^\"\n]{1,4000}\"|'[^'\n]{1,4000}'|[\"'][^\"'\n]{1,4000}|[^\s\"',;&)}\]]{1,4000})"
_TO = r"[\"'\\]{0,2}(?:\s{0,8}[=:]{1,2}>?\s{0,8}\\?|\t\s{0,8})"
"""What stands between a name and its value: a colon, an equals sign or a tab, with white space, after a quote."""
_SENSITIVE = (
    r"(?:password|passwd|passphrase|secret|credential|"
    r"(?:api|access|account|secret|private|auth|signing|encryption|master|license|storage|ssh)[ _-]?key|"
    r"(?:hf|hub|auth|access|refresh|api|bot|github|gitlab|session|bearer|id)[_-]?token|"
    r"(?:db|database|user|root|admin|smtp|ftp|mail|imap|ldap|proxy|redis|pg|my|mysql|sql)_?(?:pass|pwd?))"
)
"""Names of secrets; each may stand inside a longer name."""
_REST = r"s?(?:[_-][A-Za-z0-9_-]{0,40}|(?-i:[A-Z])[A-Za-z0-9]{0,40})?"
_PIPED = r"\|[^\n]{0,120}?(?:\bsudo\s[^\n|]{0,80}?-[A-Za-z]{0,4}S\b|--(?:password-)?stdin\b)"
_SECRETS = (
    re.compile(r"(?i:wandb)(?:(?!commit)[^\n]){0,200}?(?<![0-9a-fA-F])([0-9a-f]{40})(?![0-9a-fA-F])"),
    re.compile(r"\b(?:Bearer|Basic)\s+([A-Za-z0-9._~+/=-]{8,})"),
    re.compile(r"(?i:\b[a-z][a-z0-9+.-]{1,20}://)([^\s/@:'\"]{0,100}:[^\s'\"]{1,200})@"),
    re.compile(r"[?&](?i:x-amz-[a-z-]+|sig|signature|token|key)=" + _VALUE),
    re.compile(
        r"(?<![A-Za-z0-9_])[A-Z0-9_]{0,60}(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|_PASS|_PWD?)(?:_[A-Z0-9_]{1,40})?"
        + _TO + r"(?!\d{1,7}\b)" + _VALUE
    ),
    re.compile(rf"(?i:{_SENSITIVE}{_REST})" + _TO + _VALUE),
    re.compile(rf"(?i:{_SENSITIVE})[ ]{{1,8}}(?=[A-Za-z_-]*\d)([A-Za-z0-9._~+/=-]{{12,4000}})"),
    re.compile(
        rf"(?<![\w-])--?(?i:(?:[a-z0-9]{{1,20}}[_-]){{0,3}}"
        rf"(?:{_SENSITIVE}|pw|pwd|pass(?![= ]\d{{1,3}}\b)){_REST}|token)[=\s]\s{{0,8}}" + _VALUE
    ),
    re.compile(r"(?<![A-Za-z0-9_])(?i:token)[\"']?\s?[=:]\s?[\"']?(?=[A-Za-z_-]*\d)([A-Za-z0-9._-]{16,400})"),
    # By their place in a command.
    re.compile(r"\b(?:mysql|mariadb)[a-z-]{0,12}\s(?:[^\n|;&]{0,200}?\s)?-p" + _VALUE),
    re.compile(r"\bsshpass\s{1,8}-p\s{0,8}" + _VALUE),
    re.compile(
        r"\b(?:docker|podman|nerdctl|helm|az|oc)\s"
        r"(?:[a-z]{1,20}\s)?login\s(?:[^\n|;&]{0,200}?\s)?-p\s{0,8}" + _VALUE
    ),
    re.compile(r"\bredis-cli\s(?:[^\n|;&]{0,200}?\s)?-a\s{1,8}" + _VALUE),
    re.compile(
        r"\bcurl\s(?:[^\n|;]{0,300}?\s)?(?:-[a-zA-Z]{0,5}u\s{0,8}|--(?:proxy-)?user[=\s]\s{0,8})"
        r"(\"[^\"\n:]{0,200}:[^\"\n]{1,400}\"|'[^'\n:]{0,200}:[^'\n]{1,400}'|[^\s\"':]{0,200}:[^\s\"']{1,400})"
    ),
    re.compile(r"\b(?:echo|printf)\s{1,8}(?:-[a-zA-Z]{1,3}\s{1,8})?" + _VALUE + r"\s{0,8}" + _PIPED),
    re.compile(r"\bsudo\s[^\n|;]{0,80}?-[A-Za-z]{0,4}S\b[^\n|;]{0,80}?<<<\s{0,8}" + _VALUE),
)
_NO_SECRET = re.compile(r"[\"']?(?:none|null|true|false|\*+|<.*|\[.*|\$\{?\w+\}?)[\"']?", re.IGNORECASE)

# Accounts: whose home folder, whose prompt, whose name.
_ACCOUNT = r"([A-Za-z0-9_](?:[\w.-]{0,60}\w)?)(?![\w-])"
_HOME = re.compile(
    r"(?:(?<=file://)|(?<=-[ILv])|(?<![\w.~/-]))(?:(?:/[\w.+-]+){0,2}/home\d{0,2}|/Users|/users"
    r"|/(?:data|scratch|mnt|nfs|work|lustre|gpfs|beegfs|shared?|storage|cluster|projects?)(?:/[\w.+-]+)?/users?)/"
    + _ACCOUNT
)
_ROOT_HOME = re.compile(r"(?<![\w.~/-])/(root)(?![\w.-])")
_WINDOWS_HOME = re.compile(
    r"\b[A-Za-z]:[\\/]{1,2}Users[\\/]{1,2}([^\\/:*?\"<>|\r\n]{1,60}(?=[\\/])|[^\\/:*?\"<>|\s]{1,60})"
)
_ACCOUNTS = (
    re.compile(r"\b(?i:user|username|user_name|userid|logname)[\"']?\s?=\s?[\"']?" + _ACCOUNT),
    re.compile(r"\blogged in as:? " + _ACCOUNT),
    re.compile(r"\bwandb\.ai/" + _ACCOUNT),
    re.compile(r"\b([A-Za-z_][\w.-]{0,40})@[A-Za-z0-9.-]{1,120}:[~/]"),
    re.compile(r"\b(?:ssh|scp|sftp|rsync|mosh)\s(?:[^\n@|;]{0,80}?\s)?(?!git@)([A-Za-z_][\w.-]{0,40})@[A-Za-z0-9]"),
    re.compile(r"(?<![\w-])--(?:user-?name|login)[= ]" + _ACCOUNT),
    re.compile(r"\b(?:squeue|sacct|scancel|sudo)\s(?:[^\n|;]{0,60}?\s)?(?:-u\s?|--user[= ])" + _ACCOUNT),
)
_COMMON = """
root user users ubuntu admin administrator centos debian fedora rocky alpine jovyan runner vscode coder worker workers
master main home git work workspace data dataset datasets train training trainer test tests testing eval valid model
models torch pytorch tensor batch layer layers memory default python conda docker podman public shared project
projects local cluster server client login build cache checkpoint checkpoints output outputs input inputs slurm nvidia
allocated reserved forward backward optimizer world stage error errors warning warnings info debug trace the and for
with from this that not all any none null true false new old one two was are has had but its you your out off end now
set get put add use used file files line lines path paths name names size sizes type types time date day log logs run
runs job jobs task tasks node nodes host hosts rank ranks step steps epoch epochs loss grad seed mean sum std var val
avg min len dim num key keys value values query head heads attn mask norm bias weight weights param params state
states config configs args arg opt opts env lib libs src bin app apps api web dev prod tmp temp usr etc sys proc mnt
net nfs scratch store storage archive backup demo example examples sample samples service system process thread
threads device devices gpu gpus cpu cpus tpu cuda rocm hip xpu mps ram vram disk kernel driver version total free left
peak high low first last next prev start stop done fail failed killed exit code signal script scripts module modules
package packages notebook notebooks jupyter lab labs ssh tcp udp http https url mib gib kib byte bytes llm nlp vision
audio image images text token tokens lora qlora peft ddp fsdp zero amp fp32 fp16 bf16 int8 int4 nf4 gpt bert bart
llama mistral mixtral qwen gemma phi falcon bloom vit clip unet resnet nccl gloo mpi xla jax triton apex ray dask
spark hydra wandb comet neptune tensorboard accelerate deepspeed megatron horovod lightning transformers huggingface
kaggle colab sagemaker azure aws gcp ops infra staging research team group guest nobody daemon bot auto base core util
utils common misc proxy queue pipe stream hook hooks sched event events
"""
_WORDS = frozenset(_COMMON.split())
"""Names that are words of every log: replaced only where they stand as a home folder."""
_GIVEN = """
adam sam max lion sophia lamb lars muon tiger will mark art dean grant drew bill frank page chip dash case lane may
june april august summer ada pascal ampere hopper volta turing maxwell kepler tesla julia ruby perl chase pat
gene miles flash rose iris olive ivy grace hope dot rust rich mat
"""
_AMBIGUOUS = frozenset(_GIVEN.split())
"""Names of people that logs use as words too: replaced in paths and addresses, and where they stand as a name."""
_NUMBERED = re.compile(r"(?:rank|gpu|cuda|step|epoch|layer|node|worker|run|exp|job|v|cu|py|sm|fp|bf|int|a|h|t)[_-]?\d+")

# Hosts: where launchers, schedulers and libraries print them.
_HOST = r"([A-Za-z0-9](?:[A-Za-z0-9.-]{0,120}[A-Za-z0-9])?)"
_HOSTS = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        rf"^\W*host(?:name)?\s*: [\"']?{_HOST}",  # torchelastic's table of errors
        rf"^{_HOST}:\d+:\d+ \[\d+\] NCCL ",
        rf"^\[{_HOST}:\d+\]: ",  # accelerate
        rf"\bsrun: error: {_HOST}: ",
        rf"\*\*\* (?:STEP|JOB) \S+ ON {_HOST} ",
        rf"\bpdsh@{_HOST}: ",
        r"^(?:pdsh@[\w.-]+: )?((?:[a-z-]*(?:node|nid|dgx|hgx|host)|gpu-)[a-z]*-?\d[\w.-]*): ",
        rf"^[A-Z][a-z]{{2}}\s+\d+ \d\d:\d\d:\d\d {_HOST} [\w.-]+(?:\[\d+\])?: ",  # syslog
        rf"\b(?i:host|host_?name|node_?name|nodelist|master_addr(?:ess)?|slurm_job_nodelist)[\"']?\s?=\s?[\"']?{_HOST}",
        rf"\b(?:SLURMD_NODENAME|SLURM_SUBMIT_HOST|HOSTNAME|MASTER_ADDR)[\"']?: [\"']?{_HOST}",
        rf"--(?:master[_-]addr|rdzv[_-]endpoint|host|hostname)[= ]{_HOST}",
        rf"(?i:connect(?:ed)? to|listen(?:ing)? on|bound to) \[?{_HOST}\]?:\d",
        rf"\b[A-Za-z_][\w.-]{{0,40}}@{_HOST}:[~/]",
        rf"\b(?:ssh|scp|sftp|rsync|mosh)\s(?:[^\n@|;]{{0,80}}?\s)?(?:[A-Za-z_][\w.-]{{0,40}}|\x00)@{_HOST}",
        r"\b(ip-\d{1,3}-\d{1,3}-\d{1,3}-\d{1,3}(?:\.[\w.-]*\w)?)",
    )
)
_NO_HOST = re.compile(
    r"[A-Za-z]|localhost|none|null|unknown|self|any|auto|true|false|n/a|(?:rank|cuda|cpu|default)?\d*"
    r"|\d+\.\d+\.\d+\.\d+",
    re.IGNORECASE,
)
_FILE_TYPES = r"(?:log|out|err|txt|jsonl?|ya?ml|csv|tsv|md|html?|gz|zip|bz2|xz|zst|tar|tgz|pt|pth|bin|pkl)(?!\w)"
_DOTTED = re.compile(
    r"(?<![A-Za-z0-9.@%-])(?:[A-Za-z0-9][A-Za-z0-9-]{0,62}\.){1,6}[a-z]{2,11}(?![A-Za-z0-9(=-]"
    rf"|\.(?!{_FILE_TYPES})\w)"
)
_PRIVATE_ZONES = {"internal", "local", "localdomain", "lan", "corp", "intranet", "cluster", "private", "net", "cloud"}
_ALSO_ATTRIBUTES = {"local", "cluster", "private", "net", "cloud"}
_PUBLIC_ZONES = {"com", "org", "edu", "gov", "mil"}
_COUNTRIES = {
    "ac", "ai", "au", "br", "ca", "ch", "cn", "de", "dk", "eu", "fi", "fr", "il", "io", "jp", "kr", "nl", "se", "sg",
    "tw", "uk", "us",
}  # fmt: skip
_SITES = (
    "pytorch.org", "huggingface.co", "github.com", "githubusercontent.com", "github.io", "nvidia.com", "python.org",
    "wandb.ai", "readthedocs.io", "google.com", "googleapis.com", "microsoft.com", "tensorflow.org", "amd.com",
    "intel.com", "openai.com", "stackoverflow.com", "arxiv.org", "kaggle.com",
    "anaconda.org", "anaconda.com", "apache.org", "kernel.org", "lightning.ai", "deepspeed.ai", "ray.io",
    "kubernetes.io", "docker.com", "docker.io", "schedmd.com", "ubuntu.com", "debian.org",
)  # fmt: skip
"""Public sites that logs and this package's references point to."""

# Addresses.
_EMAIL = re.compile(
    r"(?<![\w.+-])(?!git@)[A-Za-z0-9_][\w.+-]{0,255}@(?!self\.)(?:[A-Za-z0-9-]{1,63}\.){1,5}"
    r"(?:[a-z]{2}|com|org|net|edu|gov|mil|int|info|dev|app|cloud|tech|internal|local|lan|corp)"
    rf"(?![A-Za-z0-9(\[]|\.(?!{_FILE_TYPES})\w)"
)
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:.])")
_ADDRESS_BEFORE = re.compile(
    r"(?:://|@|\b(?:ip|addr|address|host|peer|endpoint|inet|server|node)[\s:=\"'(\[/-]*)$", re.IGNORECASE
)
LEAST_PUBLIC = 25
"""A number of four parts that begins lower, in no context, is read as a version: software seldom counts higher."""
_ADDRESS_AFTER = re.compile(r":\d{2,5}\b|/\d\d?\b|<\d+>")
_VERSION_BEFORE = re.compile(
    r"(?:[=<>~!]=|[A-Za-z0-9][-_]|\bv|\b(?:version|release|driver|build|kernel|linux)\b|[\w-]*(?:cu\d\d|nvidia|cudnn|"
    r"cublas|curand|cusparse|cusolver|cufft|cupti|nvrtc|nvjitlink|nccl|cuda|torch|rocm|hip|python|mkl|ofed)[\w-]*)"
    r"[\s:=v\"'(|]*$",
    re.IGNORECASE,
)


class Redactor:
    """The aliases of one report. ``hosts`` and ``users`` are names that the caller knows to be such."""

    def __init__(self, hosts: Iterable[str] = (), users: Iterable[str] = ()) -> None:
        self._aliases: dict[tuple[str, str], str] = {}
        self._placed: list[str] = []
        self._places = dict.fromkeys(KINDS, 0)
        self._everywhere: dict[str, tuple[str, str]] = {}
        self._in_paths: set[str] = set()
        self._names: re.Pattern[str] | None = None
        for host in hosts:
            self._know_host(host, certain=True)
        for user in users:
            self._know("user", user, certain=True)

    def learn(self, value: Any) -> None:
        """Take note of the hosts and accounts that a text names; of all texts in a nested document."""
        for text in _texts(value):
            for pattern in _HOSTS:
                for found in pattern.finditer(text):
                    self._know_host(found[1])
            for found in _DOTTED.finditer(text):
                if _is_host(found):
                    self._know_host(found[0])
            for pattern in (_HOME, _WINDOWS_HOME, *_ACCOUNTS):
                for found in pattern.finditer(text):
                    self._know("user", found[1])

    def redact(self, text: str) -> str:
        """The text with aliases in place of what it should not tell."""
        self._placed = []
        text = text.replace("\x00", "⟨U+0000⟩")  # NUL marks what is already replaced, so that nothing is replaced twice
        text = _KEY_BLOCK.sub(self._block, text)
        text = _KEY_LINE.sub(lambda found: self._put("secret", found[0].strip()), text)
        text = _TOKEN.sub(lambda found: self._put("secret", found[0]), text)
        for pattern in _SECRETS:
            text = _inside(pattern, text, self._secret)
        text = _EMAIL.sub(lambda found: self._put("email", found[0].lower()), text)
        text = _IPV4.sub(self._ipv4, text)
        text = _IPV6.sub(self._ipv6, text)
        for pattern in (_HOME, _WINDOWS_HOME, _ROOT_HOME):
            text = pattern.sub(lambda found: "~" + self._put("user", found[1]), text)
        for pattern in _ACCOUNTS:
            text = _inside(pattern, text, lambda name: name if name.lower() in _WORDS else self._put("user", name))
        for pattern in _HOSTS:
            text = _inside(pattern, text, self._host)
        text = _DOTTED.sub(lambda found: self._host(found[0]) if _is_host(found) else found[0], text)
        if names := self._all_names():
            text = names.sub(lambda found: self._put(*self._everywhere.get(found[0], ("user", found[0]))), text)
        return re.sub("\x00(\\d+)\x00", lambda found: self._placed[int(found[1])], text)

    def walk(self, value: Any) -> Any:
        """A nested document with every text redacted; keys stay."""
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, Mapping):
            return {key: self.walk(inner) for key, inner in value.items()}
        return [self.walk(inner) for inner in value] if isinstance(value, list | tuple) else value

    def counts(self) -> dict[str, dict[str, int]]:
        """For each kind that was found: how many different names, in how many places."""
        names = dict.fromkeys(KINDS, 0)
        for kind, _ in self._aliases:
            names[kind] += 1
        return {kind: {"names": names[kind], "places": places} for kind, places in self._places.items() if places}

    def summary(self) -> str:
        """What was done, in a sentence."""
        done = [_counted(count["names"], KINDS[kind]) + f" in {_counted(count['places'], ('place', 'places'))}"
                for kind, count in self.counts().items()]  # fmt: skip
        return (
            f"Redacted, each by the same alias throughout: {'; '.join(done)}."
            if done
            else "Nothing to redact was found."
        )

    def _know_host(self, name: str, *, certain: bool = False) -> None:
        if _NO_HOST.fullmatch(name):
            return
        short = name.split(".")[0]
        self._know("host", name, certain=certain or "." in name)
        if short != name:
            self._know("host", short, alias_of=name)

    def _know(self, kind: str, name: str, *, certain: bool = False, alias_of: str | None = None) -> None:
        """Note a name. One that could be an ordinary word is later replaced only inside of paths, or not at all."""
        word = name.lower()
        if kind == "user":
            distinct = not (word.isdigit() or word in _AMBIGUOUS or _NUMBERED.fullmatch(word))
        else:
            distinct = bool(re.search(r"[\d._-]", name))
        if certain or (distinct and len(name) >= 3 and word not in _WORDS):
            self._everywhere.setdefault(name, (kind, alias_of or name))
        elif kind == "user" and word not in _WORDS:
            self._in_paths.add(name)
        self._names = None

    def _all_names(self) -> re.Pattern[str] | None:
        if self._names is None and (self._everywhere or self._in_paths):
            words, parts = (_any_of(names) for names in (self._everywhere, self._in_paths - set(self._everywhere)))
            self._names = re.compile(
                rf"(?<![A-Za-z0-9\x00])(?:{words})(?![A-Za-z0-9\x00])|(?<=[/\\~])(?:{parts})(?=[/\\])|\b(?:{parts})(?=@)"
            )
        return self._names

    def _put(self, kind: str, name: str) -> str:
        kind, name = self._everywhere.get(name, (kind, name)) if kind == "host" else (kind, name)
        number = 1 + sum(known == kind for known, _ in self._aliases)
        self._placed.append(self._aliases.setdefault((kind, name), f"{kind}-{number}"))
        self._places[kind] += 1
        return f"\x00{len(self._placed) - 1}\x00"

    def _secret(self, value: str) -> str:
        if "\x00" in value or _NO_SECRET.fullmatch(value):
            return value
        quote = value[0] if value[0] in "\"'" else ""
        return quote + self._put("secret", value.strip("\"'")) + quote

    def _block(self, found: re.Match[str]) -> str:
        """A private key; its lines stay lines, so that what follows keeps its number."""
        return self._put("secret", found[0]) + "\n" * found[0].count("\n")

    def _host(self, name: str) -> str:
        return name if _NO_HOST.fullmatch(name) else self._put("host", name)

    def _ipv4(self, found: re.Match[str]) -> str:
        text, before = found[0], found.string[max(0, found.start() - 48) : found.start()]
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return text
        if address.is_loopback or address.is_unspecified or text.startswith("255."):
            return text
        if _ADDRESS_BEFORE.search(before) or _ADDRESS_AFTER.match(found.string, found.end()):
            return self._put("ip", text)
        version = _VERSION_BEFORE.search(before) or not (address.is_private or int(text.split(".")[0]) >= LEAST_PUBLIC)
        return text if version else self._put("ip", text)

    def _ipv6(self, found: re.Match[str]) -> str:
        text = found[0]
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return text
        groups = [group for group in text.split(":") if group]
        plain = address.is_loopback or address.is_unspecified or len(groups) < 3 or not re.search(r"\d", text)
        return text if plain else self._put("ip", text.lower())


def _counted(count: int, words: tuple[str, str]) -> str:
    return f"{count} {words[count != 1]}"


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def _inside(pattern: re.Pattern[str], text: str, replace: Callable[[str], str]) -> str:
    """Replace what the pattern's first group caught and keep the rest of the match."""

    def one(found: re.Match[str]) -> str:
        start, end = found.start(1) - found.start(), found.end(1) - found.start()
        return found[0][:start] + replace(found[1]) + found[0][end:]

    return pattern.sub(one, text)


def _any_of(names: Iterable[str]) -> str:
    """An alternation of names, longest first; one that never matches where there are none."""
    return "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)"


def _is_host(found: re.Match[str]) -> bool:
    """Whether a dotted name is a machine's rather than a module, a file or a public site."""
    name = found[0]
    *labels, zone = name.lower().split(".")
    if zone in _ALSO_ATTRIBUTES and found.string[found.end() : found.end() + 1] == "_":
        return False  # `data-parallel.local_rank`
    if any(name.lower() == site or name.lower().endswith("." + site) for site in _SITES):
        return False
    numbered = bool(re.search(r"[a-z-]+\d|\d+-", labels[0]))
    if zone in _PUBLIC_ZONES:
        return len(labels) >= 2
    if zone in _PRIVATE_ZONES:
        return numbered or "-" in name
    return zone in _COUNTRIES and len(labels) >= 2 and "-" in name
