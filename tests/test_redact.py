"""Redaction: nothing that names a person or a machine or opens a door stays, and all that a diagnosis needs does."""

from __future__ import annotations

import pytest

from diag_kit.redact import Redactor
from tests.effort import costs_less


def redacted(*texts: str, **known) -> list[str]:
    """Texts of one report, learned together and redacted."""
    redactor = Redactor(**known)
    redactor.learn(texts)
    return [redactor.redact(text) for text in texts]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('  File "/home/alice/run/train.py", line 3', '  File "~user-1/run/train.py", line 3'),
        ("/Users/alice/run", "~user-1/run"),
        ("/nfs/home/alice/run", "~user-1/run"),
        ("file:///home/alice/run", "file://~user-1/run"),
        ("cc -I/home/alice/include", "cc -I~user-1/include"),
        (r"C:\Users\Alice Smith\run\train.py", r"~user-1\run\train.py"),
        (r"'C:\\Users\\alice\\run'", r"'~user-1\\run'"),
        ("/root/.cache/huggingface", "~user-1/.cache/huggingface"),
        ("wandb: Currently logged in as: alice", "wandb: Currently logged in as: user-1"),
        ("View run at https://wandb.ai/alice/project/runs/x1", "View run at https://wandb.ai/user-1/project/runs/x1"),
        ("srun: JobId=7 UserId=alice(1001)", "srun: JobId=7 UserId=user-1(1001)"),
        ("alice@gpu-box:~/run$ python train.py", "user-1@host-1:~/run$ python train.py"),
        ("mail alice.b@uni-x.edu now", "mail email-1 now"),
        ("  host      : gpu12 (rank 3)", "  host      : host-1 (rank 3)"),
        ("  host      : titan", "  host      : host-1"),
        ("node-a:101563:130075 [15] NCCL INFO comm", "host-1:101563:130075 [15] NCCL INFO comm"),
        ("[node12:0]: step 4", "[host-1:0]: step 4"),
        ("pdsh@node1: node2: ssh exited with exit code 247", "pdsh@host-1: host-2: ssh exited with exit code 247"),
        ("srun: error: node7: tasks 2-3: Killed", "srun: error: host-1: tasks 2-3: Killed"),
        ("slurmstepd: error: *** JOB 6 ON titan CANCELLED", "slurmstepd: error: *** JOB 6 ON host-1 CANCELLED"),
        ("Nov 30 12:01:02 titan kernel: Out of memory", "Nov 30 12:01:02 host-1 kernel: Out of memory"),
        ("MASTER_ADDR=titan MASTER_PORT=29500", "MASTER_ADDR=host-1 MASTER_PORT=29500"),
        ("torchrun --rdzv_endpoint=head1.lab:29500 train.py", "torchrun --rdzv_endpoint=host-1:29500 train.py"),
        ("failed to connect to [titan]:29500", "failed to connect to [host-1]:29500"),
        ("on ip-10-0-0-32.ec2.internal now", "on host-1 now"),
        ("ssh gpu3.cs.uni-x.edu died", "ssh host-1 died"),
        ("GET https://git.company.com/x", "GET https://host-1/x"),
        ("10.0.0.32: [2023-08-31 09:31:07]", "ip-1: [2023-08-31 09:31:07]"),
        ("tcp://203.0.113.7:29500", "tcp://ip-1:29500"),
        ("NET/Socket : Using [0]eth0:10.0.0.6<0>", "NET/Socket : Using [0]eth0:ip-1<0>"),
        ("inet fe80::1ff:fe23:4567:890a/64", "inet ip-1/64"),
        ("at 2001:db8:0:1::17 now", "at ip-1 now"),
    ],
)
def test_people_and_machines_get_aliases(text, expected):
    """Each place where a home folder, an account, a host or an address can stand."""
    assert redacted(text) == [expected]


SECRETS = [
    "hf_" + "aB3dE5gH" * 4, "sk-" + "proj-aB3dE5gH" * 3, "AKIA" + "ABCD1234EFGH5678", "ghp_" + "aB3dE5gH" * 5,
    "github_pat_" + "aB3dE5gH" * 5, "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0In0." + "c2lnbmF0dXJl",
    "npm_" + "aB3dE5gH" * 4, "sk_live_" + "aB3dE5gH" * 3, "rk_live_" + "aB3dE5gH" * 3, "r8_" + "aB3dE5gH" * 4,
    "123456789:AA" + "aB3-E_gH" * 4, "https://discord.com/api/webhooks/1234567890/" + "aB3-E_gH" * 4,
    "https://hooks.slack.com/services/T0AB/B0CD/" + "aB3dE5gH", "eyJ1c2VyIjogImJvYiIsICJwdyI6ICJ4In0=",
]  # fmt: skip


@pytest.mark.parametrize("secret", SECRETS, ids=lambda secret: secret[:6])
@pytest.mark.parametrize("around", ["{}", "token {} used", "'{}'", "X={}", "https://x/?t={}"])
def test_tokens_are_known_by_their_shape(secret, around):
    """A token of a known service never stays, wherever it stands."""
    [text] = redacted(around.format(secret))
    assert secret not in text
    assert "secret-1" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Authorization: Bearer abc.def-12345", "Authorization: Bearer secret-1"),
        ("wandb: ERROR key " + "0123456789abcdef" * 2 + "01234567 refused", "wandb: ERROR key secret-1 refused"),
        ("export WANDB_API_KEY=hunter2 && run", "export WANDB_API_KEY=secret-1 && run"),
        ("DB_PASSWORD=1234", "DB_PASSWORD=secret-1"),
        ("password: hunter2", "password: secret-1"),
        ('{"api_key": "a b c", "n": 1}', '{"api_key": "secret-1", "n": 1}'),
        ("train.py --token abc --lr 1", "train.py --token secret-1 --lr 1"),
        ("postgres://bob:pw@db/x", "postgres://secret-1@db/x"),
        ("GET /x?X-Amz-Signature=0a1b2c&y=2", "GET /x?X-Amz-Signature=secret-1&y=2"),
        ("token=abcdefgh12345678ij", "token=secret-1"),
        ("DB_PASS=hunter2", "DB_PASS=secret-1"),
        ("MY_SECRET_VALUE=hunter2", "MY_SECRET_VALUE=secret-1"),
        ("SECRET_ACCESS: hunter2", "SECRET_ACCESS: secret-1"),
        ("passphrase=hunter2", "passphrase=secret-1"),
        ("api_key\thunter2", "api_key\tsecret-1"),
        ("api_key \t =  hunter2", "api_key \t =  secret-1"),
        ("AccountName=a;AccountKey=aB3dE5==;x", "AccountName=a;AccountKey=secret-1;x"),
        ('"private_key_id": "0a1b2c"', '"private_key_id": "secret-1"'),
        ("clientSecret: hunter2", "clientSecret: secret-1"),
        ("credentials: bob/hunter2", "credentials: secret-1"),
        ("api_key=" + "x" * 3000, "api_key=secret-1"),
    ],
)
def test_secrets_are_known_by_their_name(text, expected):
    """A value whose name says that it is secret never stays."""
    assert redacted(text) == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run.py --pw hunter2 --lr 1", "run.py --pw secret-1 --lr 1"),
        ("run.py --db-password hunter2", "run.py --db-password secret-1"),
        ("mysql -u bob -phunter2 db", "mysql -u bob -psecret-1 db"),
        ("mysqldump -phunter2 db", "mysqldump -psecret-1 db"),
        ("curl -s -u bob:hunter2 https://x", "curl -s -u secret-1 https://x"),
        ("curl --user 'bob:hunter2' x", "curl --user 'secret-1' x"),
        ("sshpass -p hunter2 ssh x", "sshpass -p secret-1 ssh x"),
        ("echo hunter2 | sudo -S dmesg", "echo secret-1 | sudo -S dmesg"),
        ("echo 'a b' | sudo -kS dmesg", "echo 'secret-1' | sudo -kS dmesg"),
        ("docker login -u bob -p hunter2", "docker login -u bob -p secret-1"),
    ],
)
def test_secrets_are_known_by_their_place_in_a_command(text, expected):
    """What a command takes as a password never stays, though nothing else says that it is one."""
    assert redacted(text) == [expected]


def test_a_private_key_goes_whole_and_keeps_its_lines():
    """A key block is gone, also where its beginning or end is not shown, and line numbers after it hold."""
    body = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
    block = f"a\n-----BEGIN RSA PRIVATE KEY-----\n{body}\nQ==\n-----END RSA PRIVATE KEY-----\nb"
    whole, cut, line = redacted(block, block[: block.index("Q==")], body)
    assert whole.split("\n")[0] == "a"
    assert whole.split("\n")[5] == "b"
    assert all("MIIEv" not in text and "Q==" not in text for text in (whole, cut, line))


@pytest.mark.parametrize(
    "text",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.48 GiB. GPU 3 has 79.15 GiB",
        "nccl version 2.21.5.1, cudnn 9.1.0.70, driver 535.104.05.1",
        "nvidia-curand-cu12        10.3.5.147",
        "nvidia_curand_cu12-10.3.5.147-py3-none-manylinux2014_x86_64.whl",
        "opencv-python==4.10.0.84 and build 2.5.1.0",
        "lib 2.5.1.0 loaded",
        "listening on 127.0.0.1:29500, ::1, localhost, 0.0.0.0",
        "12:01:02 [rank3]: epoch 1:02:03 of 10:00:00",
        "torch.nn.functional.scaled_dot_product_attention in model.layers.3.self_attn.net",
        "at::native::softmax c10::Error 0x00007f:ab",
        "logs/rank_3.log:12 checkpoints/step-812/model-00001-of-00004.safetensors",
        "attn = q@k.transpose(-2, -1) + x@self.weight.T",
        "@torch.no_grad() def evaluate",
        "pad_token='<pad>' eos_token: </s> max_tokens=4096 tokens: 12 num_token = 5 TOKEN=2048",
        "HF_TOKEN=None API_KEY=${KEY} token=true",
        "commit 9fceb02d0ae598e95dc970b74767f19372d61af8",
        "see https://pytorch.org/docs/stable/notes/cuda.html and https://huggingface.co/meta-llama/Llama-3-8B",
        "threading.local sklearn.cluster torch.distributed.elastic.multiprocessing.errors",
        "root cause: the master process of the default group",
        "0000:3b:00.0 Off | 00000000:3B:00.0",
        "[default0]:100%|####| 12/12 [rank0]:[E1130 12:01:02]",
        "python train-7b-8k.sh run-a.b-c.py",
        "forward_pass=2 --pass 3 bypass: no num_passes=4 pass 2 of 3 TOKEN_LENGTH: 4096 TOKENIZERS_PARALLELISM=false",
        "docker run -u 1000:1000 img; echo step 3 | tee log; mkdir -p out; key_states.shape=(2, 8) query_key_value: 3",
        "model.data-parallel.local_rank=3 torch.nn.Linear_3 step:12:AA 3.11.4 0x7f3a12",
        " 52%|█████▏    | 26/50 [01:13<01:07,  2.81s/it, loss=2.31]",
        "pip install --user flash-attn",
    ],
)
def test_what_a_diagnosis_needs_stays(text):
    """Sizes, versions, times, ranks, modules, paths and public sites are not mistaken for names."""
    assert redacted(text) == [text]


def test_aliases_hold_across_a_report():
    """The same name has the same alias everywhere, different ones differ, and a short host name is its long one."""
    texts = redacted(
        "  host : gpu-12.cluster.internal", "  host : gpu-13.cluster.internal", "gpu-12 died; gpu-13 waited"
    )
    assert texts[2] == "host-1 died; host-2 waited"


def test_a_name_told_in_one_place_is_redacted_in_another():
    """An account seen in a home folder, and a host seen in a table, are replaced where they stand alone."""
    assert redacted("/scratch/alice/x by alice on titan9", "/home/alice/", "  host : titan9")[0] == (
        "/scratch/user-1/x by user-1 on host-1"
    )


@pytest.mark.parametrize("name", ["max", "data", "root", "train", "ubuntu"])
def test_a_name_that_is_a_word_does_not_eat_the_log(name):
    """An account named like a word of every log loses its home folder's name, and the words stay."""
    text = f"{name} memory of the {name} step"
    home = "/root/x" if name == "root" else f"/home/{name}/x"
    assert redacted(text, home) == [text, "~user-1/x"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--user bob", "--user user-1"),
        ("ssh bob@titan9", "ssh user-1@host-1"),
        ("bob-run_bob.log", "user-1-run_user-1.log"),
        ("/data/team/bob and bob's", "/data/team/user-1 and user-1's"),
        ("bobsled kbob", "bobsled kbob"),
    ],
)
def test_a_name_from_a_home_folder_goes_everywhere(text, expected):
    """However short, a name that a home folder told is replaced wherever it stands as a whole word."""
    assert redacted("/home/bob/x", text)[1] == expected


@pytest.mark.parametrize(("name", "kept"), [("adam", "adam lr"), ("al", "al 3"), ("1024", "1024 MiB"), ("gpu0", "gpu0")])
def test_a_name_that_logs_use_otherwise_goes_from_paths_only(name, kept):
    """A given name that is an optimiser's, two letters, a number: replaced in paths, not in the text."""
    assert redacted(f"/home/{name}/x", f"/data/{name}/y {kept}")[1] == f"/data/user-1/y {kept}"


def test_an_underscore_hides_no_host_and_no_address():
    """File names put together from a machine's and a person's name keep neither."""
    assert redacted("gpu-node-17.corp.internal_bob@corp.com.log") == ["email-1.log"]
    assert redacted("run_gpu-node-17.corp.internal_3.log") == ["run_host-1_3.log"]
    assert redacted("a" * 90 + "_bob@corp.com") == ["email-1"]


def test_known_hosts_go_though_nothing_in_the_text_says_host():
    """Names that the caller knows are replaced everywhere."""
    assert redacted("rank 3 lived on titan", hosts=["titan"]) == ["rank 3 lived on host-1"]


def test_a_real_name_like_an_alias_is_not_confused():
    """A machine that is really called host-2 still gets the alias of its own."""
    assert redacted("  host : host-2", "  host : host-1", "host-2 host-1") == [
        "  host : host-1", "  host : host-2", "host-1 host-2",
    ]  # fmt: skip


def test_documents_are_walked_and_counted():
    """Every text of a nested document is redacted, keys and numbers stay, and what was done is said."""
    redactor = Redactor()
    document = {"a": ["/home/alice/x", 3, None, True], "alice": {"b": ("10.0.0.6 and 10.0.0.7", "alice")}}
    redactor.learn(document)
    assert redactor.walk(document) == {"a": ["~user-1/x", 3, None, True], "alice": {"b": ["ip-1 and ip-2", "user-1"]}}
    assert redactor.counts() == {"user": {"names": 1, "places": 2}, "ip": {"names": 2, "places": 2}}
    assert redactor.summary() == (
        "Redacted, each by the same alias throughout: 1 account name in 2 places; 2 IP addresses in 2 places."
    )
    assert Redactor().summary() == "Nothing to redact was found."


def test_nuls_cannot_forge_an_alias():
    """Text that imitates the marks used on the way is shown, not obeyed."""
    assert redacted("\x000\x00 /home/alice/x")[0] == "⟨U+0000⟩0⟨U+0000⟩ ~user-1/x"


REPEATED = [
    "a",
    "/a",
    "a.",
    "1.",
    ":a",
    "a_",
    "a-b_",
    "A_",
    "@a.",
    "x@",
    "wandb ",
    "\\a",
    "://a",
    "eyJ",
    "=",
    '"',
    "a:1:",
    "echo ",
    "curl -",
    "mysql ",
    "ssh a",
    "password",
    "password='",
    "--a-",
    "DB_PASS",
    "sudo ",
    "docker login ",
]


@pytest.mark.parametrize("piece", REPEATED)
def test_a_hostile_line_costs_no_more_than_its_length(piece):
    """A line built to make patterns backtrack is done in time that grows with its length alone."""
    text = (piece * 60_000)[:60_000]
    assert costs_less(lambda: redacted(text), 20)
