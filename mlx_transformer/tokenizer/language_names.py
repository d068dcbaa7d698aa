"""Languages: their codes (ISO 639-1, 639-3, those that models use), their names, and, where a model
may know several scripts, the usual one."""

TABLE = """
ace | Acehnese | Latn
ach | Acholi
af afr | Afrikaans
ak aka | Akan
am amh | Amharic, አማርኛ
ar ara arb | Arabic, Modern Standard Arabic, العربية
acm | Mesopotamian Arabic
acq | Ta'izzi-Adeni Arabic
aeb | Tunisian Arabic
ajp | South Levantine Arabic
apc | North Levantine Arabic
ars | Najdi Arabic
ary | Moroccan Arabic
arz | Egyptian Arabic
as asm | Assamese
ast | Asturian, Asturianu
awa | Awadhi
ay aym ayr | Aymara
az aze azj | Azerbaijani, Azərbaycan | Latn
azb | South Azerbaijani
ba bak | Bashkir
bm bam | Bambara
ban | Balinese
be bel | Belarusian, Беларуская
bem | Bemba
bn ben | Bengali, Bangla, বাংলা
bho | Bhojpuri
bjn | Banjar | Latn
bo bod tib | Tibetan
br bre | Breton, Brezhoneg
bs bos | Bosnian, Bosanski | Latn
bug | Buginese
bg bul | Bulgarian, Български
ca cat | Catalan, Català
ceb | Cebuano
cs ces cze | Czech, Čeština
ch cha | Chamorro
ce che | Chechen
chr | Cherokee
cjk | Chokwe
ckb | Central Kurdish, Sorani
co cos | Corsican
crh | Crimean Tatar | Latn
cv chv | Chuvash
cy cym wel | Welsh, Cymraeg
da dan | Danish, Dansk
de deu ger | German, Deutsch
dik din | Dinka
dv div | Dhivehi
dyu | Dyula
dz dzo | Dzongkha
el ell gre | Greek, Ελληνικά
en eng | English
eo epo | Esperanto
et est ekk | Estonian, Eesti
eu eus baq | Basque, Euskara
ee ewe | Ewe
fo fao | Faroese
fa fas per pes | Persian, Farsi, فارسی
prs | Dari
fj fij | Fijian
fi fin | Finnish, Suomi
fon | Fon
fr fra fre | French, Français
fur | Friulian
ff ful fuv fuc | Fula, Fulah, Fulfulde
fy fry | Western Frisian, Frisian
gd gla | Scottish Gaelic
ga gle | Irish, Gaeilge
gl glg | Galician, Galego
gn grn gug | Guarani
gu guj | Gujarati, ગુજરાતી
ht hat | Haitian Creole, Haitian
ha hau | Hausa
haw | Hawaiian
he heb iw | Hebrew, עברית
hi hin | Hindi, हिन्दी
hne | Chhattisgarhi
hmn | Hmong
hr hrv | Croatian, Hrvatski
hu hun | Hungarian, Magyar
hy hye arm | Armenian, Հայերեն
ig ibo | Igbo
ilo | Ilocano
id ind | Indonesian, Bahasa Indonesia
is isl ice | Icelandic, Íslenska
it ita | Italian, Italiano
jv jav | Javanese
ja jpn | Japanese, 日本語
kab | Kabyle
kac | Jingpho, Kachin
kl kal | Kalaallisut, Greenlandic
kam | Kamba
kn kan | Kannada, ಕನ್ನಡ
ks kas | Kashmiri | Arab
ka kat geo | Georgian, ქართული
kr kau knc | Kanuri | Latn
kk kaz | Kazakh, Қазақ | Cyrl
kbp | Kabiye
kea | Kabuverdianu
km khm | Khmer, ខ្មែរ
ki kik | Kikuyu
rw kin | Kinyarwanda
ky kir | Kyrgyz, Кыргызча
kmb | Kimbundu
ku kur kmr | Kurdish, Northern Kurdish, Kurmanji
kg kon | Kikongo, Kongo
ko kor | Korean, 한국어
kv kom | Komi
lo lao | Lao, ລາວ
la lat | Latin
lv lav lvs | Latvian, Latviešu
lij | Ligurian
li lim | Limburgish
ln lin | Lingala
lt lit | Lithuanian, Lietuvių
lmo | Lombard
ltg | Latgalian
lb ltz | Luxembourgish, Lëtzebuergesch
lua | Luba-Kasai
lg lug | Ganda, Luganda
luo | Luo
lus | Mizo
mag | Magahi
mai | Maithili
ml mal | Malayalam, മലയാളം
mr mar | Marathi, मराठी
min | Minangkabau | Latn
mk mkd mac | Macedonian, Македонски
mg mlg plt | Malagasy
mt mlt | Maltese, Malti
mni | Meitei, Manipuri | Beng
mn mon khk | Mongolian, Монгол | Cyrl
mos | Mossi
mi mri mao | Maori
ms msa may zsm zlm | Malay, Bahasa Melayu
my mya bur | Burmese
nl nld dut | Dutch, Flemish, Nederlands
nn nno | Norwegian Nynorsk, Nynorsk
no nb nob nor | Norwegian, Bokmål, Norsk, Norwegian Bokmål
ne nep npi | Nepali, नेपाली
ns nso | Northern Sotho, Pedi
nus | Nuer
ny nya | Nyanja, Chichewa
oc oci | Occitan
om orm gaz | Oromo, West Central Oromo
or ori ory | Odia, Oriya
os oss | Ossetian
pag | Pangasinan
pa pan | Punjabi, Panjabi, ਪੰਜਾਬੀ
pap | Papiamento
pl pol | Polish, Polski
pt por | Portuguese, Português
ps pus pbt | Pashto
qu que quy | Quechua
rm roh | Romansh
ro ron rum | Romanian, Română
rom | Romani
rn run | Rundi
ru rus | Russian, Русский
sg sag | Sango
sa san | Sanskrit
sat | Santali
scn | Sicilian
shn | Shan
si sin | Sinhala, සිංහල
sk slk slo | Slovak, Slovenčina
sl slv | Slovenian, Slovene, Slovenščina
sm smo | Samoan
sn sna | Shona
sd snd | Sindhi | Arab
so som | Somali
st sot | Southern Sotho, Sesotho
es spa | Spanish, Castilian, Español
sq sqi alb als | Albanian, Shqip
sc srd | Sardinian
sr srp | Serbian, Српски | Cyrl
ss ssw | Swati
su sun | Sundanese
sv swe | Swedish, Svenska
sw swa swh | Swahili, Kiswahili
szl | Silesian
ta tam | Tamil, தமிழ்
taq | Tamasheq | Latn
tt tat | Tatar | Cyrl
te tel | Telugu, తెలుగు
tg tgk | Tajik
tl tgl fil | Tagalog, Filipino
th tha | Thai, ไทย
ti tir | Tigrinya
to ton | Tongan
tpi | Tok Pisin
tn tsn | Tswana
ts tso | Tsonga
tk tuk | Turkmen | Latn
tum | Tumbuka
tr tur | Turkish, Türkçe
tw twi | Twi
tzm | Central Atlas Tamazight
ug uig | Uyghur | Arab
uk ukr | Ukrainian, Українська
umb | Umbundu
ur urd | Urdu, اردو
uz uzb uzn | Uzbek, O'zbek | Latn
ve ven | Venda
vec | Venetian
vi vie | Vietnamese, Tiếng Việt
wa wln | Walloon
war | Waray
wo wol | Wolof
xh xho | Xhosa
yi yid ydd | Yiddish
yo yor | Yoruba
yue | Cantonese, Yue Chinese, 粵語
zh zho chi cmn | Chinese, Mandarin, 中文 | Hans
zu zul | Zulu
"""


def _codes(listed: str) -> list[str]:
    return listed.split()


# The codes of NLLB-200 and of M2M100 and mBART-50, in the order of their ids.
NLLB = _codes("""
ace_Arab ace_Latn acm_Arab acq_Arab aeb_Arab afr_Latn ajp_Arab aka_Latn amh_Ethi apc_Arab arb_Arab
ars_Arab ary_Arab arz_Arab asm_Beng ast_Latn awa_Deva ayr_Latn azb_Arab azj_Latn bak_Cyrl bam_Latn
ban_Latn bel_Cyrl bem_Latn ben_Beng bho_Deva bjn_Arab bjn_Latn bod_Tibt bos_Latn bug_Latn bul_Cyrl
cat_Latn ceb_Latn ces_Latn cjk_Latn ckb_Arab crh_Latn cym_Latn dan_Latn deu_Latn dik_Latn dyu_Latn
dzo_Tibt ell_Grek eng_Latn epo_Latn est_Latn eus_Latn ewe_Latn fao_Latn pes_Arab fij_Latn fin_Latn
fon_Latn fra_Latn fur_Latn fuv_Latn gla_Latn gle_Latn glg_Latn grn_Latn guj_Gujr hat_Latn hau_Latn
heb_Hebr hin_Deva hne_Deva hrv_Latn hun_Latn hye_Armn ibo_Latn ilo_Latn ind_Latn isl_Latn ita_Latn
jav_Latn jpn_Jpan kab_Latn kac_Latn kam_Latn kan_Knda kas_Arab kas_Deva kat_Geor knc_Arab knc_Latn
kaz_Cyrl kbp_Latn kea_Latn khm_Khmr kik_Latn kin_Latn kir_Cyrl kmb_Latn kon_Latn kor_Hang kmr_Latn
lao_Laoo lvs_Latn lij_Latn lim_Latn lin_Latn lit_Latn lmo_Latn ltg_Latn ltz_Latn lua_Latn lug_Latn
luo_Latn lus_Latn mag_Deva mai_Deva mal_Mlym mar_Deva min_Latn mkd_Cyrl plt_Latn mlt_Latn mni_Beng
khk_Cyrl mos_Latn mri_Latn zsm_Latn mya_Mymr nld_Latn nno_Latn nob_Latn npi_Deva nso_Latn nus_Latn
nya_Latn oci_Latn gaz_Latn ory_Orya pag_Latn pan_Guru pap_Latn pol_Latn por_Latn prs_Arab pbt_Arab
quy_Latn ron_Latn run_Latn rus_Cyrl sag_Latn san_Deva sat_Beng scn_Latn shn_Mymr sin_Sinh slk_Latn
slv_Latn smo_Latn sna_Latn snd_Arab som_Latn sot_Latn spa_Latn als_Latn srd_Latn srp_Cyrl ssw_Latn
sun_Latn swe_Latn swh_Latn szl_Latn tam_Taml tat_Cyrl tel_Telu tgk_Cyrl tgl_Latn tha_Thai tir_Ethi
taq_Latn taq_Tfng tpi_Latn tsn_Latn tso_Latn tuk_Latn tum_Latn tur_Latn twi_Latn tzm_Tfng uig_Arab
ukr_Cyrl umb_Latn urd_Arab uzn_Latn vec_Latn vie_Latn war_Latn wol_Latn xho_Latn ydd_Hebr yor_Latn
yue_Hant zho_Hans zho_Hant zul_Latn
""")
M2M100 = _codes("""
af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi
hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns
oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh
zu
""")
WMT21 = _codes("en ha is ja cs ru zh de")
MBART = _codes("""
ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV
my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN
""")
MBART50 = MBART + _codes("""
af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX
sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI
""")
