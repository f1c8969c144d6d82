"""Forms in which programs print credentials. Every value is made up; `S` is the part that must not
be kept.
"""

S = "hunter22x"
_D = "48151623"  # a credential of digits
_T = "0FakeFake1FakeFake2FakeFake3FakeFake4"  # the end of a token
_HEX = "0fa1e0fa1e0fa1e0fa1e0fa1e0fa1e0fa1e0fa1e"

NAMED = (
    *(
        f"{name}={S}"
        for name in (
            "password",
            "PASSWD",
            "DB_PASSWORD",
            "secret",
            "client_secret",
            "AWS_SECRET_ACCESS_KEY",
        )
    ),
    *(
        f"{name}={S}"
        for name in (
            "HF_TOKEN",
            "token",
            "access_token",
            "refresh-token",
            "auth_token",
            "OAUTH",
            "PGPASSWORD",
        )
    ),
    *(
        f"{name}={S}"
        for name in (
            "MYSQL_PWD",
            "passphrase",
            "credential",
            "WANDB_API_KEY",
            "apikey",
            "ssh-key",
            "accountKey",
        )
    ),
    *(
        f"{name}={S}"
        for name in (
            "DB_PASS",
            "pass",
            "pw",
            "user_pw",
            "PIN",
            "sim-pin",
            "PAT",
            "gh_pat",
            "creds",
            "cookie",
        )
    ),
    *(
        f"{name}={S}"
        for name in (
            "LICENSE",
            "LICENSE_KEY",
            "otp",
            "session_sid",
            "jwt",
            "dbPass",
            "signing_key",
            "secretKey",
        )
    ),
    *(
        f"{name}: {S}"
        for name in (
            "password",
            "Token",
            "api_key",
            "db_pass",
            "Secret",
            "private_key",
            "cookie",
            "wandb-key",
        )
    ),
    *(
        f"--{name}={_D}"
        for name in ("password", "pass", "pw", "pin", "secret", "passphrase")
    ),
    *(
        f"--{name} {S}"
        for name in (
            "password",
            "token",
            "api-key",
            "pass",
            "pw",
            "creds",
            "cookie",
            "PAT",
            "pin",
            "db-pwd",
        )
    ),
)
WRITTEN = (
    f'"password": "{S}"',
    f"'token': '{S}'",
    f'{{"a": {{"apiKey":"{S}"}}}}',
    rf'"{{\"password\": \"{S}\"}}"',
    rf'"{{\\\"token\\\": \\\"{S}\\\"}}"',
    f"('HF_TOKEN', '{S}')",
    f'["--token", "{S}"]',
    f"['train.py', '--api-key', '{S}']",
    f"environ({{'HF_TOKEN': '{S}', 'X': '1'}})",
    f"Namespace(lr=0.1, password='{S}')",
    f"Config(api_key={S!r}, n=2)",
    f"api_key=SecretStr('{S}')",
    f"token=b'{S}'",
    f'password = "two words {S}"',
    f"password: str = '{S}'",
    f"\x1b[32mHF_TOKEN\x1b[0m=\x1b[33m{S}\x1b[0m",
    f"HF_TOKEN=\x1b[1m{S}",
    f"+ export HF_TOKEN={S}",
    f'declare -x DB_PASS="{S}"',
    f"access_token%3D{S}%26x%3D1",
    f"%22password%22%3A%22{S}%22",
    f"token => {S}",
    f"password := {S}",
    f"secret -> {S}",
    f"<password>{S}</password>",
    f'<add key="Password" value="{S}"/>',
    f"password is {S}",
    f"The token was {S}",
    f"password set to {S}",
    f"wandb.login(key='{S}0123')",
    f'login(token="{S}")',
    f'huggingface_hub.login("{S}0123")',
    f"wandb login {_HEX}",
    f"os.environ['HF_TOKEN'] = '{S}'",
    f"setenv HF_TOKEN {S}",
    f"password\t=\t{S}",
    f"aws_secret_access_key = {S}",
    f"//npm.example.org/:_authToken={S}",
    f'"auth": "{S}MDA="',
    f"client-key-data: {S}MDA=",
)
SENT = (
    f"Authorization: Bearer {S}",
    f"authorization: Basic {S}MDA=",
    f"Authorization: token {S}",
    f"Authorization: {S}",
    f"'authorization': ['Bearer {S}']",
    f"Proxy-Authorization: Digest username=me, response={S}",
    f"X-Api-Key: {S}",
    f"x-auth-token: {S}",
    f"header: Authorization: AWS4-HMAC-SHA256 Credential=a/b, Signature={S}",
    f"Cookie: a=1; session={S}",
    f"Set-Cookie: sid={S}; Path=/; HttpOnly",
    f"> Cookie: {S}=1",
    f"sent Bearer {S}0",
    f"curl -u me:{S} https://host",
    f"curl --user me:{S} host",
    f"curl -H 'X-Api-Key: {S}' host",
    f"sshpass -p {S} ssh host",
    f"openssl enc -pass pass:{S}",
    f"machine host login me password {S}",
    f"docker login -u me --password {S}",
    f"-u me:{S}",
)
ADDRESSES = (
    f"https://me:{S}@host/x",
    f"https://{S}0123456789@host/x",
    f"redis://:{S}@host:6379/0",
    f"postgresql://me:{S}@host/db",
    f"mongodb+srv://me:{S}@host.net",
    f"s3://a:{S}@bucket",
    f"https://host/x?token={S}&y=1",
    f"https://host/x?sig={S}0",
    f"https://host/x?a=1&X-Amz-Signature={S}",
    f"https://host/x?a=1&X-Goog-Signature={S}",
    f"https://host?api_key={S}",
    f"https://host/x?password={S}",
    f"jdbc:mysql://host/db?user=me&password={S}",
    f"AccountName=a;AccountKey={S}==",
    f"Server=host;User Id=me;Password={S};",
    f"https://hooks.slack.com/services/T000/B000/{S}",
    f"https://discord.com/api/webhooks/123/{S}",
    f"https://a.webhook.office.com/webhookb2/0-0@0/IncomingWebhook/0/{S}",
    f"https://api.telegram.org/bot123:{S}/send",
    f"https://hooks.zapier.com/hooks/catch/1/{S}",
    f"https://host/x?code={S}",
    f"https://host/x?X-Amz-Credential={S}",
    f"https://chat.googleapis.com/v1/spaces/A/messages?key={S}",
)
TOKENS = (
    *(
        f"{begin}{_T}"
        for begin in (
            "ghp_",
            "gho_",
            "ghu_",
            "ghs_",
            "ghr_",
            "github_pat_",
            "glpat-",
            "glrt-",
            "hf_",
            "sk-",
        )
    ),
    *(
        f"{begin}{_T}"
        for begin in (
            "sk-ant-api03-",
            "sk-proj-",
            "sk_live_",
            "rk_test_",
            "xoxb-",
            "xoxp-",
            "xapp-1-",
            "ya29.",
        )
    ),
    *(
        f"{begin}{_T}"
        for begin in (
            "AIza",
            "npm_",
            "pypi-",
            "nvapi-",
            "dckr_pat_",
            "hvs.",
            "SG.",
            "glsa_",
            "pplx-",
            "gsk_",
        )
    ),
    *(
        f"{begin}{_T}"
        for begin in (
            "lin_api_",
            "PMAK-",
            "shpat_",
            "dop_v1_",
            "ntn_",
            "LTAI",
            "sntryu_",
            "dp.pt.",
        )
    ),
    "AKIAFAKEFAKEFAKEFAKE",
    "ASIAFAKEFAKEFAKEFAKE",
    "eyJhbGciOiJGQUtF.eyJzdWIi.FAKEFAKE",
    f"dapi{_HEX[:32]}",
    f"rpa_{'FAKE' * 10}",
    "A3-FAKEFA-FAKEFAKEFAK-FAKEF-FAKEF-FAKE0",
)

FORMS = (*NAMED, *WRITTEN, *SENT, *ADDRESSES)
"""Texts that hold `S` or `_D`."""


def secret_of(form: str) -> str:
    """The part of a form that must not be kept."""
    return next(part for part in (S, _D, _HEX) if part in form)


BODY = tuple("MIIFAKE" + chr(65 + number) * 57 for number in range(3))
KEYS = tuple(
    "\n".join(
        [f"-----BEGIN {label}-----", *head, *BODY, "abc=", f"-----END {label}-----"]
    )
    for label, head in (
        ("PRIVATE KEY", ()),
        ("RSA PRIVATE KEY", ("Proc-Type: 4,ENCRYPTED", "DEK-Info: AES-256-CBC,00", "")),
        ("EC PRIVATE KEY", ()),
        ("OPENSSH PRIVATE KEY", ()),
        ("ENCRYPTED PRIVATE KEY", ()),
        ("PGP PRIVATE KEY BLOCK", ("Version: 1", "")),
    )
)
"""Private keys as files hold them."""

HARMLESS = (
    "--max_tokens=4096",
    "tokens: 12",
    "--token=12",
    "tokenizer: /data/t.model",
    "token_throughput: 1234.5",
    "--lr=1e-3",
    "tokens/s: 1234.5",
    "token = None",
    "password: null",
    "auth: false",
    "rng_key = Array([0, 42], dtype=uint32)",
    "prng_key=threefry2x32",
    "cache_key: jit_step-abcdef0123",
    "public_key: abcdef",
    "author: Jane Doe",
    "authors=Jane",
    "--xla_dump_hlo_pass_re=.*",
    "--xla_gpu_experimental_use_autotuner_pass=true",
    "running pass: layout-assignment",
    "passes=3",
    "passed: 12",
    "compass: north",
    "pin_memory=True",
    "basic block",
    "bearer of news",
    "docker run -u 1000:1000",
    "hf_model_name=llama",
    "path: /a/b",
    "pattern: x",
    "spinning=1",
    "keyword: x",
    "step 5, loss 1.25",
    "opinion: fine",
    "-----BEGIN TRAINING CONFIG-----",
    "https://host:8080/x@y",
    "https://host/a?step=12345678",
    "ssh://git@host/x.git",
    "completed step: 7, seconds: 0.213, Tokens/s/device: 4096.3, total_weights: 65536, loss: 9.1",
    "the token is required",
    "password is not set",
    "secretion",
    "key: value",
    "top_k_key",
    "api_keys_dir",
    "npm_config_cache=x",
    "key is written",
    "with token embeddings and key 'params'",
    "session = tf.Session()",
    "Session: train",
    "session_id: 12",
    "pin = 3",
    "OTP: on",
    "srun -p a100 --ntasks 8",
    "docker run -p 8080:80 image",
    "image repo:tag@sha256:abcdef",
    "rank 3: loss@step 7",
    "re_train_step_0_of_something_long1",
    "secret_santa_layer_norm_0",
    "file.cc:1234:a:b:c",
    "locale tk_TM.UTF-8",
    "as-is and ak-47",
    "docker run -u 1000:1000 -p 8080:80 image",
    "%after-all = token[] after-all()",
    "echo 1 | tee x",
)
"""What stays as it is."""
HARMLESS_ARGV = (
    ("-p", "8080:80"),
    ("-p", "a100"),
    ("-p", "train"),
    ("python", "-u", "train.py", "-p", "8080"),
    ("docker", "run", "-u", "1000:1000", "-p", "8080:80", "image"),
    ("-p", "runs/exp1"),
    ("-p", "gpu-a100-80gb"),
    ("-a", "x86_64"),
    ("--session", "train"),
    ("--session", "12"),
    ("--token", "--lr=1"),
    ("--token", "-v"),
    ("--password", "--fp8"),
    ("-w", "12"),
    ("-P", "4"),
    ("--user", "1000:1000"),
)
"""Words of commands that stay as they are."""
